"""Chats with the tokenizers of ``transformers`` and ``tokenizers``, against masks by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import loaderx as lx
from chat_tokenizer import REWRITING, STYLES
from loaderx import ArgumentError, DataLoader, Dataset

pytestmark = [pytest.mark.owners, pytest.mark.foreign]
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<start_of_turn>", "</s>", "<|end|>"]
WORDS = "Be brief. What is the sum of 2 and 2? It is 4, of course, my friend. And 3+3? user"
CHATS = [
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the sum of 2 and 2?"},
        {"role": "assistant", "content": content, "reasoning_content": "2, 3, 4", "thinking": "4!"},
        {"role": "user", "content": " And 3+3?\n"},
        {"role": "assistant", "content": "It is 6", "reasoning_content": "3, 6", "thinking": "6!"},
    ]
    for content in ("It is 4.", " It is 4, my friend \n", "\n4", "日本 é")
]


@pytest.fixture(scope="module")
def fast():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([WORDS] * 9, trainer)
    return made


@pytest.fixture(scope="module")
def tokenizer(fast):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>")


def by_hand(tokenizer, style, chat, train_on="assistant", reasoning=True):
    pieces = [*STYLES[style][1](chat)]
    last = max(n for n, m in enumerate(chat) if m["role"] == "assistant")
    trained = {True: True, False: False, "thought": reasoning}
    letters = [
        trained[kind] and (train_on == "assistant" or n == last)
        for n, text, kind in pieces
        for _ in text
    ]
    text = "".join(text for _, text, _ in pieces)
    found = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    return found["input_ids"], [any(letters[a:b]) for a, b in found["offset_mapping"]]


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize("train_on", ["assistant", "last"])
@pytest.mark.parametrize("style", STYLES)
def test_masks(tokenizer, style, train_on, reasoning):
    tokenizer.chat_template = STYLES[style][0]
    stage = lx.text.chat(tokenizer, train_on=train_on, reasoning=reasoning)
    # A blank that is a token of its own, and written by the template, is not the answer's.
    has_blank = style == "instructions" and not reasoning
    for chat in CHATS[:1] if has_blank else CHATS:
        if style in REWRITING and train_on == "assistant":
            with pytest.raises(ArgumentError, match="writes message 2"):
                stage.map({"messages": chat})
            chat = chat[:3]
        found = stage.map({"messages": chat})
        tokens, mask = by_hand(tokenizer, style, chat, train_on, reasoning)
        assert found["tokens"].tolist() == tokens
        assert found["loss_mask"].tolist() == mask


@pytest.mark.parametrize("style", STYLES)
def test_pairs(tokenizer, style):
    tokenizer.chat_template = STYLES[style][0]
    chats = {
        "chosen": CHATS[0],
        "rejected": [*CHATS[0][:-1], {"role": "assistant", "content": "7"}],
    }
    found = lx.text.preference(tokenizer).map(chats)
    for name, chat in chats.items():
        tokens, mask = by_hand(tokenizer, style, chat, "last")
        assert found[f"{name}_tokens"].tolist() == tokens
        assert found[f"{name}_loss_mask"].tolist() == mask


@pytest.mark.parametrize("style", ["chatml", "marked"])
def test_tokenizers_reach_worker_processes(tokenizer, style):
    tokenizer.chat_template = STYLES[style][0]
    stage = pickle.loads(pickle.dumps(lx.text.chat(tokenizer)))
    chats = Dataset.from_source([{"messages": chat} for chat in CHATS * 4]).map(stage)
    rows = chats.pack({"tokens": 256, "loss_mask": "tokens"}).batch(1)
    with DataLoader(rows, engine="processes", num_workers=2) as loader:
        np.testing.assert_equal([*loader], [*rows])


@pytest.mark.parametrize("kind", ["transformers", "tokenizers"])
def test_completions(fast, tokenizer, kind):
    owner = tokenizer if kind == "transformers" else fast
    stage = lx.text.completion(owner, eos=1)
    for prompt, answer in (("What is 2?", " It is 4."), ("What is 2? ", "It is 4."), ("Wh", "at")):
        found = stage.map({"prompt": prompt, "completion": answer})
        whole = fast.encode(prompt + answer).ids
        before = fast.encode(prompt).ids
        if whole[: len(before)] != before:
            whole = before + fast.encode(answer).ids
        assert found["tokens"].tolist() == [*whole, 1]
        assert int(found["loss_mask"].argmax()) == len(before)
        assert fast.decode(found["tokens"].tolist()[:-1]) == prompt + answer


def test_a_tokenizer_without_a_template(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(lx.ArgumentTypeError, match="and a chat template, as those of models that"):
        lx.text.chat(tokenizer)
    named = {"chat_template": STYLES["chatml"][0]}
    found = lx.text.chat(tokenizer, chat_template_kwargs=named).map({"messages": CHATS[0]})
    assert found["loss_mask"].tolist() == by_hand(tokenizer, "chatml", CHATS[0])[1]
