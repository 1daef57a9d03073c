"""Which tokens of a chat are the model's: against masks by hand, for templates of many styles."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import loaderx as lx
from chat_tokenizer import CHATML, MARKED, REWRITING, STYLES, ChatTokenizer, expected, ids
from loaderx import ArgumentError, Dataset, RecordError

THOUGHT = {"reasoning_content": "two and two", "thinking": "two and two"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "It is 4.", **THOUGHT},
    {"role": "user", "content": "And 3+3?"},
    {"role": "assistant", "content": "It is 6.", **THOUGHT},
]


def made(template, chat, **options):
    """What the stage makes of one chat."""
    stage = lx.text.chat(ChatTokenizer(template), **options)
    return stage.map({"messages": chat})


def agrees(style, chat, **options):
    found = made(STYLES[style][0], chat, **options)
    tokens, mask = expected(style, chat, **options)
    assert found["tokens"].tolist() == tokens
    assert found["loss_mask"].tolist() == mask.tolist()


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_all_turns_of_the_assistant(style, reasoning):
    if style not in REWRITING:
        agrees(style, CHAT, reasoning=reasoning)
    else:
        with pytest.raises(ArgumentError, match=r"writes message 2 \(of the assistant\) or one be"):
            made(STYLES[style][0], CHAT, reasoning=reasoning)
    agrees(style, CHAT[:3], reasoning=reasoning)


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize("style", STYLES)
def test_the_last_turn_works_with_every_style(style, reasoning):
    agrees(style, CHAT, train_on="last", reasoning=reasoning)


texts = st.text("ab1 0.\n<", max_size=6)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": texts},
    optional={"reasoning_content": texts, "thinking": texts},
)


@settings(max_examples=60)
@given(chat=st.lists(turns, min_size=2, max_size=6), data=st.data())
@pytest.mark.parametrize("style", STYLES)
def test_a_mask_is_right_or_an_error(style, chat, data):
    chat = [{"role": "user", "content": "Hi"}, *chat]
    options = {
        "train_on": data.draw(st.sampled_from(["assistant", "last"])),
        "reasoning": data.draw(st.booleans()),
    }
    try:
        found = made(STYLES[style][0], chat, **options)
    except ArgumentError:
        return
    tokens, mask = expected(style, chat, **options)
    assert found["tokens"].tolist() == tokens
    assert found["loss_mask"].tolist() == mask.tolist()


def test_reasoning_within_the_content():
    turn = {"role": "assistant", "content": "<think>\ntwo\n</think>\n\nIt is 4."}
    found = made(CHATML, [CHAT[1], turn], reasoning=False)
    answer = ids("\n\nIt is 4.<|im_end|>\n")
    assert found["tokens"][found["loss_mask"]].tolist() == answer
    assert not found["loss_mask"][: -len(answer)].any()


def test_content_in_parts():
    template = CHATML.replace("m.content", "m.content[0].text")
    chat = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in CHAT]
    found = made(template, chat)
    assert found["loss_mask"].tolist() == expected("chatml", CHAT)[1].tolist()
    with pytest.raises(ArgumentError, match="whose 'content' is a text, got list. Join its parts"):
        made(template, chat, reasoning=False)


FAULTS = {  # template: what is said of it
    "marks of the questions": (
        MARKED.replace("== 'assistant' %}{% gen", "== 'user' %}{% gen"),
        "marks 2 parts of the chat, and not its 2 turns of the assistant. Correct it; or take",
    ),
    "marks of the first turn alone": (
        MARKED.replace("'assistant' %}{% gen", "'assistant' and loop.index0 < 3 %}{% gen"),
        "marks 1 parts of the chat, and not its 2 turns",
    ),
    "marks that are never reached": (
        CHATML + "{% if false %}{% generation %}{% endgeneration %}{% endif %}",
        "marks 0 parts of the chat, and not its 2 turns",
    ),
    "marks of everything": (
        "{% generation %}" + CHATML + "{% endgeneration %}",
        "marks 1 parts of the chat, and not its 2 turns",
    ),
    "an end of the chat": (CHATML + "{{ '<|end|>' }}", "writes message 2 .of the assistant. or"),
    "a prompt that moves": (
        "{{ 'turns: ' ~ messages | length }}" + CHATML,
        "writes message 2 .of the assistant. or one before it otherwise where more messages",
    ),
    "the last message first": (
        CHATML.replace("in messages", "in messages | reverse"),
        "Write train_on=.last.; or give a template that keeps earlier turns",
    ),
    "no answers": (
        CHATML.replace("{{ '<|im_start|>'", "{{ '' if m.role == 'assistant' else '<|im_start|>'"),
        "message 2 has no token to train on: all are the prompt's. Leave it out",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_errors_that_name_the_record(fault):
    template, said = FAULTS[fault]
    dataset = Dataset.from_source([{"messages": CHAT}]).map(lx.text.chat(ChatTokenizer(template)))
    with pytest.raises(RecordError, match=said) as caught:
        dataset[0]
    assert "map(chat) failed on record 0: ArgumentError: " in str(caught.value)


def test_other_arguments_reach_the_template():
    chat, shown = (
        CHAT[1:3],
        "{% if tools is not none %}{{ tools | length ~ mood }}{% endif %}" + CHATML,
    )
    options = {"tools": [{"name": "f"}], "mood": "calm", "chat_template": shown}
    found = made(CHATML, chat, chat_template_kwargs=options)
    assert found["tokens"].tolist() == [*ids("1calm"), *expected("chatml", chat)[0]]

    stage = lx.text.chat(ChatTokenizer(shown), train_on="last")
    for tools, text in (("[1, 2]", "2"), ([1], "1"), ("[]", ""), ([], ""), ("", ""), (None, "")):
        record = stage.map({"messages": chat, "tools": tools, "id": 7})
        assert record["tokens"].tolist() == [*ids(text), *expected("chatml", chat)[0]]
        assert sorted(record) == ["id", "loss_mask", "tokens"]


def test_a_marked_template_that_rewrites_turns():
    template = STYLES["thinking"][0].replace(
        "{{- m.content + '<|im_end|>\\n' }}",
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\\n' }}"
        "{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}",
    )
    found = made(template, CHAT)
    tokens, mask = expected("thinking", CHAT, reasoning=False)
    assert found["tokens"].tolist() == tokens
    assert np.array_equal(found["loss_mask"], mask)
