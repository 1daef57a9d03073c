"""A chat template, and where the turns of the model begin and end in its tokens.

Templates are programs, which say nothing about whose tokens are whose.  Those with
``{% generation %}`` mark the model's text themselves.  For all others beginnings of the chat are
rendered.  What the model is given before the turn ``k`` are the messages before it and the
generation prompt; the turn ends where the messages up to ``k`` end.  Both must be beginnings of the
whole chat's tokens.  They are not if a template rewrites earlier turns (most templates of models
that reason leave out the reasoning of all turns but the last), and then no mask of these turns is
right: the model never writes what stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from loaderx.errors import ArgumentError, ArgumentTypeError
from loaderx.frozen import Frozen

Tokens: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]
Message: TypeAlias = dict[str, Any]

_SET_HERE = {"add_generation_prompt", "continue_final_message", "return_dict", "tokenize"}
_MARKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class ChatTemplate(Frozen):
    """A tokenizer's template, with the arguments that it is given for every chat."""

    tokenizer: Any  # with `apply_chat_template`, as those of Hugging Face
    options: dict[str, object]

    def __post_init__(self) -> None:
        if not callable(getattr(self.tokenizer, "apply_chat_template", None)) or not self._text:
            raise ArgumentTypeError(
                "`tokenizer` must have `apply_chat_template` and a chat template, as those of "
                "models that were tuned for chats (AutoTokenizer.from_pretrained(...)), got "
                f"{type(self.tokenizer).__name__}. A template may be given: "
                'chat_template_kwargs={"chat_template": text}.'
            )
        for name in _SET_HERE & self.options.keys():
            raise ArgumentError(
                f"`chat_template_kwargs` has {name!r}, which the stage sets itself. Leave it out."
            )

    @property
    def _text(self) -> object:
        """The template, or several by name; a tokenizer of another kind may not show it."""
        own = getattr(self.tokenizer, "chat_template", "unknown")
        return self.options.get("chat_template", own)

    @property
    def has_marks(self) -> bool:
        """Whether the template says itself which text is the model's."""
        return _MARKS.search(str(self._text)) is not None

    def render(self, chat: list[Message], name: str = "input_ids", **options: object) -> Tokens:
        """The tokens of a chat, or another array of their length."""
        options = {**self.options, **options, "tokenize": True, "return_dict": True}
        found = self.tokenizer.apply_chat_template(chat, **options)
        return np.asarray(found[name], np.int32).reshape(-1)

    def marked(self, chat: list[Message], tokens: Tokens, turns: list[int]) -> Mask:
        """The mask that the template's own marks give, if it can be that of these turns."""
        mask = self.render(chat, "assistant_masks", return_assistant_tokens_mask=True) > 0
        found = np.count_nonzero(np.diff(mask, prepend=False) & mask)
        before = common_length(self.render(chat[: turns[0]]), tokens)
        if found < len(turns) or mask[:before].any():
            raise ArgumentError(
                f"{{% generation %}} of the template marks {found} parts of the chat, and not its "
                f"{len(turns)} turns of the assistant. Correct it; or take the marks out, then "
                "beginnings of the chat are rendered to find the turns."
            )
        return mask

    def mask_of(
        self, chat: list[Message], tokens: Tokens, turns: Iterable[int], *, reasoning: bool
    ) -> Mask:
        """The mask of the tokens that the model writes in these messages.

        Args:
            chat: all its messages.
            tokens: of the whole chat.
            turns: the numbers of messages.
            reasoning: whether what stands before the answer belongs to it.
        """
        mask = np.zeros(len(tokens), np.bool_)
        for turn in turns:
            is_last = turn + 1 == len(chat)
            stop = len(tokens) if is_last else self._end(chat[: turn + 1], tokens)
            asked = self.render(chat[:turn], add_generation_prompt=True)
            start = common_length(asked, tokens)
            if start < len(asked):  # such as a prompt that opens <think>, and a turn without it
                start = max(start, self._end(chat[:turn], tokens))
            if not reasoning:
                other = _with_other_answer(chat[turn])
                start = max(start, common_length(self.render([*chat[:turn], other]), tokens))
            if start >= stop:
                raise ArgumentError(
                    f"message {turn} has no token to train on: all are the prompt's. Leave it out "
                    "in .map(), or the record with .filter(...)."
                )
            mask[start:stop] = True
        return mask

    def _end(self, beginning: list[Message], tokens: Tokens) -> int:
        """The number of tokens of the first messages, which must be those of the whole chat."""
        own = self.render(beginning)
        if common_length(own, tokens) == len(own):
            return len(own)
        raise ArgumentError(
            f"the template writes message {len(beginning) - 1} (of the {beginning[-1]['role']}) or "
            "one before it otherwise where more messages follow, so which tokens the model wrote "
            'there cannot be told. Write train_on="last"; or give a template that keeps earlier '
            'turns, chat_template_kwargs={"chat_template": text}.'
        )


def _with_other_answer(message: Message) -> Message:
    """The message with the same reasoning, and an answer that begins otherwise."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise ArgumentError(
            "reasoning=False needs messages of the assistant whose 'content' is a text, got "
            f"{type(content).__name__}. Join its parts in .map() first."
        )
    head, mark, answer = content.rpartition("</think>")
    first = "1" if answer.lstrip().startswith("0") else "0"
    return {**message, "content": f"{head}{mark}{first}"}


def common_length(one: Tokens, other: Tokens) -> int:
    """How many tokens at the beginning are the same."""
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
