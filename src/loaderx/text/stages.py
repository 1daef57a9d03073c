"""The stages that make tokens of texts: `chat`, `preference` and `completion`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from loaderx.errors import ArgumentError, ArgumentTypeError, check_bool, check_choice, check_int
from loaderx.frozen import Frozen
from loaderx.hints import advised
from loaderx.text.template import ChatTemplate, Mask, Message, Tokens, common_length
from loaderx.tree import Tree


@advised
def chat(
    tokenizer: Any,
    *,
    messages: str = "messages",
    train_on: str = "assistant",
    reasoning: bool = True,
    max_length: int | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Chat:
    """Chats as ``tokens`` and ``loss_mask``, for `Dataset.map`.

    Messages are dicts with ``role`` and ``content``, and whatever else the template reads; keys
    whose value is None are left out.  If a record has ``tools``, a list or a list as JSON, the
    template gets them.  The other leaves stay.

    >>> import loaderx as lx
    >>> class Letters:  # in place of AutoTokenizer.from_pretrained(...)
    ...     def apply_chat_template(self, chat, add_generation_prompt=False, **options):
    ...         text = "".join(f"{turn['role'][0]}:{turn['content']};" for turn in chat)
    ...         return {"input_ids": list((text + "a:" * add_generation_prompt).encode())}
    >>> turns = [{"role": "user", "content": "2+3"}, {"role": "assistant", "content": "5"}]
    >>> ds = lx.Dataset.from_source([{"messages": turns}]).map(lx.text.chat(Letters()))
    >>> bytes(ds[0]["tokens"].astype("uint8")), ds[0]["loss_mask"].astype(int).tolist()
    (b'u:2+3;a:5;', [0, 0, 0, 0, 0, 0, 0, 0, 1, 1])

    A turn is trained on from the end of the generation prompt to the end of its message, what ends
    it (``<|im_end|>``) included.  If the template has ``{% generation %}``, that says which tokens.

    Args:
        tokenizer: of Hugging Face's ``transformers``, or with an ``apply_chat_template`` like it.
        messages: the leaf that holds the messages.
        train_on: ``"assistant"``, all turns of the assistant; ``"last"``, only its last one, which
            also works with templates that rewrite earlier turns; ``"all"``, every token.
        reasoning: False leaves out of the mask what a turn says before its answer: fields such as
            ``reasoning_content`` of the message, and its content up to ``</think>``.
        max_length: tokens after these are cut off.  It is an error if no trained token is left.
        chat_template_kwargs: arguments for ``apply_chat_template``, such as ``chat_template``, or
            variables of the template.
    """
    check_choice("train_on", train_on, ("assistant", "last", "all"))
    template = ChatTemplate(tokenizer, dict(chat_template_kwargs or {}))
    length = _checked_length(max_length)
    return Chat(template, train_on, check_bool("reasoning", reasoning), length, messages)


@advised
def preference(
    tokenizer: Any,
    *,
    max_length: int | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Preference:
    """Pairs of chats as tokens, for DPO and reward models, for `Dataset.map`.

    Records have the messages of two chats, ``chosen`` and ``rejected``.  Those that both begin with
    are the prompt, which may also be a leaf of its own, ``prompt``.  The assistant's turns after it
    are trained on.  The leaves are ``chosen_tokens``, ``chosen_loss_mask``, ``rejected_tokens`` and
    ``rejected_loss_mask``; ``pack({"chosen_tokens": n, "rejected_tokens": n, ...})`` keeps pairs in
    the same row.

    >>> import loaderx as lx
    >>> class Letters:  # in place of AutoTokenizer.from_pretrained(...)
    ...     def apply_chat_template(self, chat, add_generation_prompt=False, **options):
    ...         text = "".join(f"{turn['role'][0]}:{turn['content']};" for turn in chat)
    ...         return {"input_ids": list((text + "a:" * add_generation_prompt).encode())}
    >>> def says(text, role="assistant"):
    ...     return [{"role": role, "content": text}]
    >>> pairs = [{"prompt": says("2+3", "user"), "chosen": says("5"), "rejected": says("six")}]
    >>> record = lx.Dataset.from_source(pairs).map(lx.text.preference(Letters()))[0]
    >>> bytes(record["rejected_tokens"][record["rejected_loss_mask"]].astype("uint8"))
    b'six;'

    Args:
        tokenizer: of Hugging Face's ``transformers``, or with an ``apply_chat_template`` like it.
        max_length: tokens of a chat after these are cut off.  It is an error if no trained token is
            left.
        chat_template_kwargs: arguments for ``apply_chat_template``.
    """
    template = ChatTemplate(tokenizer, dict(chat_template_kwargs or {}))
    return Preference(template, "assistant", True, _checked_length(max_length))


@advised
def completion(
    tokenizer: Any,
    *,
    prompt: str = "prompt",
    completion: str = "completion",
    eos: int | None = None,
    max_length: int | None = None,
) -> Completion:
    """Prompts and completions as ``tokens`` and ``loss_mask``, for `Dataset.map`.

    Both are plain text.  They are encoded as one text, so that tokens at the border are those that
    the tokenizer makes of running text.  If a token reaches over the border, they are encoded one
    by one: the model then sees the prompt as it will be given.  The mask has the completion and the
    token that ends it.

    >>> import loaderx as lx
    >>> class Letters:  # in place of AutoTokenizer.from_pretrained(...)
    ...     def encode(self, text, add_special_tokens=True):
    ...         return list(text.encode())
    >>> ds = lx.Dataset.from_source([{"question": "2+3=", "answer": "5"}])
    >>> stage = lx.text.completion(Letters(), prompt="question", completion="answer", eos=10)
    >>> record = ds.map(stage)[0]
    >>> record["tokens"].tolist(), record["loss_mask"].astype(int).tolist()
    ([50, 43, 51, 61, 53, 10], [0, 0, 0, 0, 1, 1])

    Args:
        tokenizer: of ``transformers`` or ``tokenizers``, or with an ``encode`` like theirs.
        prompt: the leaf with the text before.
        completion: the leaf with the text to train on.
        eos: the token that ends each completion; the tokenizer's own ``eos_token_id`` by default.
        max_length: tokens after these are cut off.  It is an error if no trained token is left.
    """
    if eos is None:
        eos = getattr(tokenizer, "eos_token_id", None)
    if eos is None or not callable(getattr(tokenizer, "encode", None)):
        raise ArgumentTypeError(
            "`tokenizer` must have a method `encode` and an `eos_token_id`, as those of Hugging "
            f"Face have, got {type(tokenizer).__name__}. The token may be given, too: eos=2."
        )
    length = _checked_length(max_length)
    return Completion(tokenizer, check_int("eos", eos), length, prompt, completion)


def _checked_length(max_length: int | None) -> int | None:
    return None if max_length is None else check_int("max_length", max_length, least=1)


class Chats(Frozen):
    """The base of the two stages: how a chat becomes tokens."""

    template: ChatTemplate
    train_on: str
    reasoning: bool
    max_length: int | None

    def _template_for(self, rest: dict[str, Any]) -> ChatTemplate:
        """The template with the tools of a record, which are taken out of it."""
        tools = rest.pop("tools", None)
        tools = json.loads(tools or "[]") if isinstance(tools, str) else _plain(tools)
        options = self.template.options | ({"tools": tools} if tools else {})
        return self.template.replace(options=options)

    def _learned(
        self, template: ChatTemplate, chat: list[Message], shared: int = 0
    ) -> tuple[Tokens, Mask]:
        """The tokens of a chat and their mask, for turns after those that it shares."""
        tokens = template.render(chat)
        if self.train_on == "all":
            return tokens[: self.max_length], np.ones(len(tokens), np.bool_)[: self.max_length]
        turns = [n for n, one in enumerate(chat) if n >= shared and one["role"] == "assistant"]
        turns = turns[-1:] if self.train_on == "last" else turns
        if not turns or not turns[0]:
            raise ArgumentError(
                "there must be a message of the assistant to train on, after another message (of a "
                "pair: after those that both chats begin with). Leave the record out with "
                ".filter(...), or a greeting in .map()."
            )
        if self.train_on == "assistant" and self.reasoning and not shared and template.has_marks:
            mask = template.marked(chat, tokens, turns)
        else:
            mask = template.mask_of(chat, tokens, turns, reasoning=self.reasoning)
        return _checked_mask(tokens, mask, self.max_length)


class Chat(Chats):
    """The stage that `chat` returns."""

    messages: str

    __name__ = "chat"  # as a chain shows it

    def map(self, record: Tree) -> Tree:
        """The record with tokens and their mask in place of the messages."""
        rest = {**record}
        chat = _messages(rest, self.messages)
        rest["tokens"], rest["loss_mask"] = self._learned(self._template_for(rest), chat)
        return rest


class Preference(Chats):
    """The stage that `preference` returns."""

    __name__ = "preference"

    def map(self, record: Tree) -> Tree:
        """The record with tokens and masks of both chats in place of their messages."""
        rest = {**record}
        template = self._template_for(rest)
        prompt = _messages(rest, "prompt") if isinstance(rest.get("prompt"), list) else []
        pair = {name: _messages(rest, name) for name in ("chosen", "rejected")}
        for name, chat in pair.items():
            pair[name] = chat if chat[: len(prompt)] == prompt else prompt + chat
        both = [*zip(*pair.values(), strict=False)]
        shared = next((n for n, (one, other) in enumerate(both) if one != other), len(both))
        if not shared:
            raise ArgumentError(
                "the two chats have no prompt in common: their first messages differ. Correct the "
                "record, or leave it out with .filter(...)."
            )
        for name, chat in pair.items():
            found = self._learned(template, chat, shared)
            rest[f"{name}_tokens"], rest[f"{name}_loss_mask"] = found
        return rest


class Completion(Frozen):
    """The stage that `completion` returns."""

    tokenizer: Any
    eos: int
    max_length: int | None
    prompt: str
    completion: str

    __name__ = "completion"

    def map(self, record: Tree) -> Tree:
        """The record with tokens and their mask in place of the two texts."""
        rest = {**record}
        before, after = _taken(rest, self.prompt, str), _taken(rest, self.completion, str)
        start, tokens = self._encode(before), self._without_end(self._encode(before + after))
        if common_length(start, tokens) < len(start):
            start = self._without_end(start)  # which the tokenizer adds to every text
        if common_length(start, tokens) < len(start):
            end = self._encode(after, add_special_tokens=False)
            tokens = np.concatenate([start, self._without_end(end)])
        tokens = np.append(tokens, np.int32(self.eos))
        mask = np.arange(len(tokens)) >= len(start)
        rest["tokens"], rest["loss_mask"] = _checked_mask(tokens, mask, self.max_length)
        return rest

    def _encode(self, text: str, **options: bool) -> Tokens:
        found = self.tokenizer.encode(text, **options)
        return np.asarray(getattr(found, "ids", found), np.int32).reshape(-1)

    def _without_end(self, tokens: Tokens) -> Tokens:
        return tokens[:-1] if len(tokens) and tokens[-1] == self.eos else tokens


def _taken(rest: dict[str, Any], name: str, kind: type) -> Any:
    """A leaf of this kind, which is taken out of the record."""
    if isinstance(rest.get(name), kind):
        return rest.pop(name)
    have = ", ".join(f"{key!r} ({type(leaf).__name__})" for key, leaf in rest.items())
    raise ArgumentError(
        f"the record needs a leaf {name!r} ({kind.__name__}) and has {have}. Give the name "
        "of yours if the stage has an argument for it, or make it in .map() first."
    )


def _messages(rest: dict[str, Any], name: str) -> list[Message]:
    """Messages without what is None, which tables have where a message lacks a field."""
    found = _plain(_taken(rest, name, list))
    for number, message in enumerate(found):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ArgumentError(
                f"message {number} of {name!r} must be a dict with 'role' and 'content', got "
                f"{message!r:.80}. Make it one in .map() first."
            )
    return [{key: part for key, part in one.items() if part is not None} for one in found]


def _plain(value: Any) -> Any:
    """Numbers and lists in place of NumPy's, which tables have, and templates cannot write."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def _checked_mask(tokens: Tokens, mask: Mask, max_length: int | None) -> tuple[Tokens, Mask]:
    """Both, cut, if some tokens are trained on and some are not."""
    if mask.all():
        raise ArgumentError(
            f"all {len(mask)} tokens would be trained on, the prompt included. For chats, "
            'train_on="all" says that this is meant.'
        )
    if not mask[:max_length].any():
        raise ArgumentError(
            f"no token to train on is left of max_length={max_length}: the first is token "
            f"{mask.argmax()}. Raise it, or leave the record out with .filter(...)."
        )
    return tokens[:max_length], mask[:max_length]
