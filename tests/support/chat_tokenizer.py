"""A small tokenizer with chat templates of many styles, and what they write, by hand.

Its tokens are words with the blank before them, so that tokens reach over borders of turns, as
those of real tokenizers do.
"""

from __future__ import annotations

import functools
import itertools
import re
import zlib

import jinja2
import numpy as np

_WORDS = re.compile(r"<\|[^|]*\|>|</?[a-z_]+>|\[/?INST\]| ?\w+|\n+| ?[^\w\s<\[]+|.", re.DOTALL)
_MARK = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")
_OPEN, _CLOSE = "\ue000", "\ue001"


def words(text):
    """The tokens of a text as texts."""
    return _WORDS.findall(text)


def ids(text):
    return [zlib.crc32(word.encode()) >> 1 for word in words(text)]


@functools.lru_cache
def _compiled_template(text):
    marked = _MARK.sub(lambda m: f"{{{{{m[1]} '{_CLOSE if m[2] else _OPEN}' {m[3]}}}}}", text)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(marked)


def _refuse(message):
    raise ValueError(message)


class ChatTokenizer:
    """As those of ``transformers``, as far as chats go."""

    eos_token_id = 2

    def __init__(self, chat_template):
        self.chat_template = chat_template

    def encode(self, text, add_special_tokens=True):
        return ([1] if add_special_tokens else []) + ids(text)

    def apply_chat_template(
        self,
        conversation,
        tools=None,
        chat_template=None,
        add_generation_prompt=False,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=False,
        **variables,
    ):
        assert tokenize
        assert return_dict
        text = _compiled_template(chat_template or self.chat_template).render(
            messages=conversation,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
        plain = re.sub(f"[{_OPEN}{_CLOSE}]", "", text)
        found = {"input_ids": ids(plain)}
        if return_assistant_tokens_mask:
            pieces = [
                (part, number % 2)
                for number, part in enumerate(re.split(f"[{_OPEN}{_CLOSE}]", text))
            ]
            found["assistant_masks"] = mask_of(pieces).astype(int).tolist()
        return found


def mask_of(pieces):
    """The mask of a text in pieces, (text, trained): tokens with a trained letter are trained."""
    letters = np.concatenate([np.full(len(text), bool(trained)) for text, trained in pieces])
    at = np.cumsum([0, *map(len, words("".join(text for text, _ in pieces)))])
    return np.array([letters[a:b].any() for a, b in itertools.pairwise(at)])


# Templates, each with what it writes: pieces (text, trained), "thought" where that is reasoning ---


def flat(template):
    """A template without its line breaks, which are for the reader."""
    return re.sub(r"\n *", "", template)


CHATML = flat("""{% for m in messages %}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""")


def chatml(chat):
    for n, m in enumerate(chat):
        is_own = m["role"] == "assistant"
        yield n, f"<|im_start|>{m['role']}\n", False
        yield n, f"{m['content']}<|im_end|>\n", is_own


HEADERS = flat("""{{ '<|begin_of_text|>' }}
{% for m in messages %}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{% endif %}""")


def headers(chat):
    yield -1, "<|begin_of_text|>", False
    for n, m in enumerate(chat):
        yield n, f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n", False
        yield n, f"{m['content'].strip()}<|eot_id|>", m["role"] == "assistant"


TURNS = flat("""{% set ns = namespace(system='') %}
{% for m in messages %}
{% if m.role == 'system' %}{% set ns.system = m.content + '\\n\\n' %}
{% else %}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- ns.system + m.content | trim + '<end_of_turn>\\n' }}{% set ns.system = '' %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""")


def turns(chat):
    system = ""
    for n, m in enumerate(chat):
        if m["role"] == "system":
            system = m["content"] + "\n\n"
            continue
        is_own = m["role"] == "assistant"
        yield n, f"<start_of_turn>{'model' if is_own else m['role']}\n", False
        yield n, f"{system}{m['content'].strip()}<end_of_turn>\n", is_own
        system = ""


INSTRUCTIONS = flat("""{{ '<s>' }}
{% for m in messages %}
{% if m.role == 'system' %}{{ m.content + '\\n' }}
{% elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}
{% endfor %}""")


def instructions(chat):
    yield -1, "<s>", False
    for n, m in enumerate(chat):
        if m["role"] == "system":
            yield n, m["content"] + "\n", False
        elif m["role"] == "user":
            yield n, f"[INST] {m['content']} [/INST]", False
        else:
            yield n, f" {m['content']}</s>", True


# Reasoning is written for the turns after the last question alone.
THINKING = flat("""{% set ns = namespace(last=0) %}
{% for m in messages %}
{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{% endfor %}
{% for m in messages %}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.index0 > ns.last and m.reasoning_content %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content + '<|im_end|>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""")


def thinking(chat, opened=True):
    last = max(n for n, m in enumerate(chat) if m["role"] == "user")
    for n, m in enumerate(chat):
        yield n, f"<|im_start|>{m['role']}\n", False
        thought = n > last and m.get("reasoning_content")
        if thought:
            yield n, "<think>\n", opened and "thought"
            yield n, f"{thought}\n</think>\n\n", "thought"
        yield n, f"{m['content']}<|im_end|>\n", m["role"] == "assistant"


# The generation prompt opens the reasoning, which answers without it do not have.
OPENED = THINKING.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")


def opened(chat):
    return thinking(chat, opened=False)


CHANNELS = flat("""{% for m in messages %}
{% if m.role == 'assistant' %}
{% if loop.last and m.thinking %}
{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- else %}
{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""")


def channels(chat):
    for n, m in enumerate(chat):
        if m["role"] != "assistant":
            yield n, f"<|start|>{m['role']}<|message|>{m['content']}<|end|>", False
            continue
        is_last = n + 1 == len(chat)
        if is_last and m.get("thinking"):
            yield n, "<|start|>assistant", False
            yield n, f"<|channel|>analysis<|message|>{m['thinking']}<|end|>", "thought"
            yield n, "<|start|>assistant", "thought"
        else:
            yield n, "<|start|>assistant", False
        yield n, "<|channel|>final<|message|>", "thought"
        yield n, m["content"] + ("<|return|>" if is_last else "<|end|>"), True


# Turns of the same role are joined, and blanks around them dropped.
JOINED = flat("""{% for m in messages %}
{% if loop.first or m.role != messages[loop.index0 - 1].role %}
{{- ('' if loop.first else '<|end|>\\n') + '<|' + m.role + '|>\\n' + m.content | trim }}
{%- else %}{{- '\\n' + m.content | trim }}{% endif %}
{% if loop.last %}{{- '<|end|>\\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}""")


def joined(chat):
    for n, m in enumerate(chat):
        is_own = m["role"] == "assistant"
        if n and chat[n - 1]["role"] == m["role"]:
            yield n, f"\n{m['content'].strip()}", is_own
        else:
            yield n, f"<|{m['role']}|>\n", False
            yield n, m["content"].strip(), is_own
        if n + 1 == len(chat) or chat[n + 1]["role"] != m["role"]:
            yield n, "<|end|>\n", is_own


MARKED = flat("""{% for m in messages %}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\\n' }}{% endgeneration %}
{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""")


STYLES = {
    "chatml": (CHATML, chatml),
    "headers": (HEADERS, headers),
    "turns": (TURNS, turns),
    "instructions": (INSTRUCTIONS, instructions),
    "thinking": (THINKING, thinking),
    "opened": (OPENED, opened),
    "channels": (CHANNELS, channels),
    "joined": (JOINED, joined),
    "marked": (MARKED, chatml),
}
REWRITING = {"thinking", "opened", "channels"}  # earlier turns


def expected(style, chat, train_on="assistant", reasoning=True):
    """The tokens and their mask, from what the template writes."""
    pieces = [*STYLES[style][1](chat)]
    last = max(n for n, m in enumerate(chat) if m["role"] == "assistant")
    trained = {True: True, False: False, "thought": reasoning}
    mask = [
        (text, trained[kind] and (train_on == "assistant" or n == last)) for n, text, kind in pieces
    ]
    return ids("".join(text for text, _ in mask)), mask_of(mask)
