"""Chats, pairs of them and completions as stages of a chain."""

from __future__ import annotations

import json

import numpy as np
import pytest

import loaderx as lx
from chat_tokenizer import CHATML, STYLES, ChatTokenizer, expected, ids
from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, RecordError

USER = {"role": "user", "content": "What is 2+2?"}
ANSWER = {"role": "assistant", "content": "It is 4."}
WRONG = {"role": "assistant", "content": "It is five."}
TOKENIZER = ChatTokenizer(CHATML)


def only(stage, **record):
    return Dataset.from_source([record]).map(stage)[0]


# Chats ------------------------------------------------------------------------------------------


def test_leaves_and_their_types():
    found = only(lx.text.chat(TOKENIZER, messages="turns"), turns=[USER, ANSWER], id=3)
    assert {name: np.asarray(leaf).dtype for name, leaf in found.items()} == {
        "id": np.dtype(int),
        "tokens": np.dtype(np.int32),
        "loss_mask": np.dtype(bool),
    }


def test_fields_without_a_value_are_no_fields():
    """As in tables, where every message has all fields."""
    template = CHATML.replace("m.content", "(m.name if m.name is defined else m.content)")
    turns = [{**USER, "name": None}, {**ANSWER, "name": None}]
    found = only(lx.text.chat(ChatTokenizer(template)), messages=turns)
    assert found["tokens"].tolist() == expected("chatml", [USER, ANSWER])[0]


def test_calls_of_tools_in_tables(tmp_path):
    """Their numbers are NumPy's, which no template could write as JSON."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    calls = [{"name": "add", "arguments": {"a": 2, "b": 2.5, "c": [1, 2], "exact": True}}]
    chat = [{**USER, "calls": []}, {**ANSWER, "calls": calls}]
    record = {"messages": chat, "tools": [{"name": "add", "count": 3}]}
    parquet.write_table(pa.Table.from_pylist([record]), tmp_path / "chats.parquet")
    tokenizer = ChatTokenizer(
        "{{ tools | tojson }}" + CHATML.replace("m.content", "(m.content ~ m.calls | tojson)")
    )
    stage = lx.text.chat(tokenizer)
    found = Dataset.open(tmp_path / "chats.parquet").map(stage)[0]
    np.testing.assert_equal(found, stage.map(record))


def test_everything_is_trained_on_if_that_is_said():
    found = only(lx.text.chat(TOKENIZER, train_on="all", max_length=5), messages=[USER])
    assert found["tokens"].tolist() == expected("chatml", [USER, ANSWER])[0][:5]
    assert found["loss_mask"].tolist() == [True] * 5


def test_what_is_cut_off():
    whole = only(lx.text.chat(TOKENIZER), messages=[USER, ANSWER])
    first = int(whole["loss_mask"].argmax())
    found = only(lx.text.chat(TOKENIZER, max_length=first + 2), messages=[USER, ANSWER])
    assert found["loss_mask"].tolist() == [False] * first + [True] * 2
    with pytest.raises(RecordError) as caught:
        only(lx.text.chat(TOKENIZER, max_length=first), messages=[USER, ANSWER])
    assert str(caught.value).endswith(
        f"ArgumentError: no token to train on is left of max_length={first}: the first is token "
        f"{first}. Raise it, or leave the record out with .filter(...)."
    )


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        (
            [USER],
            "there must be a message of the assistant to train on, after another message (of a",
        ),
        ([], "there must be a message of the assistant to train on, after another"),
        ([ANSWER, USER, ANSWER], "or a greeting in .map()"),
        (
            ["Hi"],
            "message 0 of 'messages' must be a dict with 'role' and 'content', got 'Hi'. Make",
        ),
        ([USER, {"from": "gpt", "value": "4"}], "message 1 of 'messages' must be a dict with"),
        (
            "Hi",
            "needs a leaf 'messages' (list) and has 'messages' (str). Give the name of yours if",
        ),
    ],
)
def test_records_that_are_no_chats(turns, said):
    with pytest.raises(RecordError) as caught:
        only(lx.text.chat(TOKENIZER), messages=turns)
    assert said in str(caught.value)


def test_a_mask_of_everything_is_an_error():
    answers = "{% generation %}{{ messages[1].content if messages[1] else '' }}{% endgeneration %}"
    said = 'tokens would be trained on, the prompt included. For chats, train_on="all" says.*'
    with pytest.raises(RecordError, match=said):
        only(lx.text.chat(ChatTokenizer(answers)), messages=[USER, ANSWER])


def test_arguments():
    with pytest.raises(ArgumentTypeError) as caught:
        lx.text.chat("gpt2")
    assert str(caught.value) == (
        "`tokenizer` must have `apply_chat_template` and a chat template, as those of models that "
        "were tuned for chats (AutoTokenizer.from_pretrained(...)), got str. A template may be "
        'given: chat_template_kwargs={"chat_template": text}.'
    )
    with pytest.raises(ArgumentTypeError, match="and a chat template"):
        lx.text.preference(ChatTokenizer(None))
    with pytest.raises(ArgumentError, match="`train_on` must be one of 'assistant', 'last', 'all'"):
        lx.text.chat(TOKENIZER, train_on="user")
    with pytest.raises(ArgumentTypeError, match="`reasoning` must be True or False"):
        lx.text.chat(TOKENIZER, reasoning="yes")
    for stage in (lx.text.chat, lx.text.preference, lx.text.completion):
        with pytest.raises(ArgumentError, match="`max_length` must be at least 1"):
            stage(TOKENIZER, max_length=0)
    for name in ("add_generation_prompt", "return_dict"):
        with pytest.raises(
            ArgumentError, match=f"has '{name}', which the stage sets itself. Leave it out"
        ):
            lx.text.chat(TOKENIZER, chat_template_kwargs={name: True})
    with pytest.raises(
        RecordError, match="needs a leaf 'messages' .list. and has 'chat' .list.. G"
    ):
        only(lx.text.chat(TOKENIZER), chat=[USER, ANSWER])


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_from_lines_to_batches_and_from_every_state(engine, tmp_path):
    with open(tmp_path / "chats.jsonl", "w") as file:
        for n in range(40):
            turns = [USER, {**ANSWER, "content": "so " * (n % 7 + 1)}]
            file.write(json.dumps({"id": n, "messages": turns}) + "\n")
    lines = Dataset.open(str(tmp_path / "chats.jsonl"), columns=["messages"]).shuffle(seed=0)
    rows = lines.map(lx.text.chat(TOKENIZER)).pack({"tokens": 64, "loss_mask": "tokens"}, window=20)
    dataset = rows.batch(2)
    whole = [*dataset]
    assert len(whole) > 4
    assert [*whole[0]] == ["tokens", "loss_mask", "tokens_segment_ids", "tokens_positions"]
    trained = sum(int(batch["loss_mask"].sum()) for batch in whole)
    assert trained == sum(sum(expected("chatml", line["messages"])[1]) for line in lines)
    with DataLoader(
        dataset, engine=engine, num_workers=None if engine == "inline" else 2
    ) as loader:
        batches, states = loader.epoch(0), []
        for batch, other in zip(batches, whole, strict=True):
            np.testing.assert_equal(batch, other)
            states.append(batches.get_state())
        for number, state in enumerate(states[:: 1 if engine == "inline" else 3]):
            number = number if engine == "inline" else 3 * number
            again = loader.epoch(0)
            again.set_state(json.loads(json.dumps(state)))
            for batch, other in zip(again, whole[number + 1 :], strict=True):
                np.testing.assert_equal(batch, other)


# Preferences ------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_pairs(style):
    stage = lx.text.preference(ChatTokenizer(STYLES[style][0]))
    system = {"role": "system", "content": "Be brief."}
    prompt = [system, USER, ANSWER, USER]
    wanted = {name: [*prompt, turn] for name, turn in (("chosen", ANSWER), ("rejected", WRONG))}
    apart = {"prompt": prompt, "chosen": [ANSWER], "rejected": [WRONG]}
    for record in (wanted, apart, {"prompt": prompt, **wanted}):
        found = stage.map({**record, "id": 3})
        assert found["id"] == 3
        assert len(found) == 5
        for name, chat in wanted.items():
            tokens, mask = expected(style, chat, "last")
            assert found[f"{name}_tokens"].tolist() == tokens
            assert found[f"{name}_loss_mask"].tolist() == mask.tolist()


def test_a_prompt_that_is_a_text_stays():
    """As in sets that have the first message once more."""
    record = {"prompt": "What is 2+2?", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]}
    found = lx.text.preference(TOKENIZER).map(record)
    assert found["prompt"] == "What is 2+2?"
    assert found["chosen_tokens"].tolist() == expected("chatml", [USER, ANSWER])[0]


def test_answers_of_several_turns():
    stage = lx.text.preference(TOKENIZER, max_length=500)
    longer = [USER, ANSWER, {"role": "tool", "content": "4"}, ANSWER]
    found = stage.map({"chosen": longer, "rejected": [USER, WRONG]})
    assert found["chosen_loss_mask"].tolist() == expected("chatml", longer)[1].tolist()


def test_pairs_are_packed_together():
    records = [{"chosen": [USER, ANSWER], "rejected": [USER, WRONG]}] * 5
    pairs = Dataset.from_source(records).map(lx.text.preference(TOKENIZER))
    lengths = {"chosen_tokens": 64, "rejected_tokens": 64}
    masks = {"chosen_loss_mask": "chosen_tokens", "rejected_loss_mask": "rejected_tokens"}
    for row in pairs.pack({**lengths, **masks}):
        segments = [int(row[f"{name}_segment_ids"].max()) for name in lengths]
        assert segments[0] == segments[1] > 0


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (
            ([USER, ANSWER], [USER, ANSWER]),
            "pair: after those that both chats begin with). Leave",
        ),
        (
            ([USER, ANSWER], [USER]),
            "pair: after those that both chats begin with). Leave",
        ),
        (([USER, ANSWER], [{**USER, "content": "3+3?"}, WRONG]), "have no prompt in common: their"),
        (([ANSWER], [WRONG]), "have no prompt in common: their first messages differ. Correct the"),
        (("4", "5"), "needs a leaf 'chosen' (list) and has"),
    ],
)
def test_pairs_that_are_none(pair, said):
    with pytest.raises(RecordError) as caught:
        only(lx.text.preference(TOKENIZER), chosen=pair[0], rejected=pair[1])
    assert said in str(caught.value)


# Completions ------------------------------------------------------------------------------------


def test_a_prompt_and_its_completion():
    stage = lx.text.completion(TOKENIZER, prompt="question", completion="answer")
    found = only(stage, question="What is 2+2?", answer=" It is 4.", id=3)
    before, after = ids("What is 2+2?"), ids(" It is 4.")
    assert found["tokens"].tolist() == [1, *before, *after, 2]
    assert found["loss_mask"].tolist() == [False] * (1 + len(before)) + [True] * (len(after) + 1)
    assert sorted(found) == ["id", "loss_mask", "tokens"]


def test_a_token_that_reaches_over_the_border():
    """The prompt stays what the model will be given."""
    found = only(lx.text.completion(TOKENIZER), prompt="The sun", completion="flower blooms")
    assert ids("The sunflower blooms")[:2] != ids("The sun")
    assert found["tokens"].tolist() == [1, *ids("The sun"), *ids("flower blooms"), 2]
    assert found["loss_mask"].tolist() == [False] * 3 + [True] * 3


class Ending:
    """A tokenizer that ends every text, as those of encoders, with its tokens in an object."""

    def encode(self, text, add_special_tokens=True):
        return type("Encoding", (), {"ids": [*text.encode(), 9]})()


def test_a_tokenizer_that_ends_every_text():
    found = only(lx.text.completion(Ending(), eos=9), prompt="ab", completion="c")
    assert found["tokens"].tolist() == [97, 98, 99, 9]
    assert found["loss_mask"].tolist() == [False, False, True, True]


class Dollars:
    """A tokenizer that knows its own end in a text, and adds none."""

    eos_token_id = 9

    def encode(self, text, add_special_tokens=True):
        return [9 if letter == "$" else ord(letter) for letter in text]


@pytest.mark.parametrize("answer", ["c", "c$"])
def test_an_end_within_the_prompt_is_not_trained_on(answer):
    found = only(lx.text.completion(Dollars()), prompt="a$b$", completion=answer)
    assert found["tokens"].tolist() == [97, 9, 98, 9, 99, 9]
    assert found["loss_mask"].tolist() == [False] * 4 + [True] * 2


def test_completions_that_are_none():
    stage = lx.text.completion(TOKENIZER, max_length=3)
    for record, said in (
        ({"prompt": "a b c", "completion": "d"}, "no token to train on is left of max_length=3"),
        (
            {"prompt": [USER], "completion": [ANSWER]},
            "needs a leaf 'prompt' .str. and has 'prompt'",
        ),
    ):
        with pytest.raises(RecordError, match=said):
            only(stage, **record)
    with pytest.raises(RecordError, match="tokens would be trained on, the prompt included"):
        only(lx.text.completion(Ending(), eos=9), prompt="", completion="c")
    for tokenizer in ("gpt2", Ending()):
        with pytest.raises(
            ArgumentTypeError, match="`encode` and an `eos_token_id`, as those of H"
        ):
            lx.text.completion(tokenizer)
    with pytest.raises(ArgumentTypeError, match="`eos` must be an integer"):
        lx.text.completion(Ending(), eos="</s>")
