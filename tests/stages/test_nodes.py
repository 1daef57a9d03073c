"""Every node class answers every question of `Node`.

The answers of an example of every class are in ``node_answers.txt``, each with the questions that
have it; ``-`` is for what is never asked, as how to read a stream by index.  To add a stage, add an
example here and its answers there; to add a question, answer it for every example.  Run as a
program, this file prints the answers that the nodes give.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import loaderx
from inside import dataset_of, node_of
from loaderx import ChainError, Dataset
from loaderx.chain.families import ByIndex, KeepsPlaces
from loaderx.chain.node import Node
from loaderx.chain.stream_build import Above, Repeats, StreamBuild
from loaderx.chain.stream_stage import stream_cut
from loaderx.chain.unit_size import stream_input_of
from loaderx.reading.batch_readers import Lanes
from loaderx.reading.monitor import Monitor
from loaderx.reading.operators import Request
from loaderx.stages import WindowStage, nodes
from loaderx.stages.narrow import Narrow, Narrowed

# The examples -----------------------------------------------------------------------------------


def halve(record):
    return record // 2


def noisy(record, rng):
    return record + rng.random()


def number(index, record):
    return record + index


def is_odd(record):
    return record % 2 == 1


def twice(record):
    return [record, record]


def policy(error):
    return "replace"


class Drawn(WindowStage):
    least: float = 0.5

    def random_map_window(self, records, rng):
        return [pair for pair in enumerate(records) if rng.random() > self.least]


RECORDS = Dataset.range(10)
BATCHES = RECORDS.batch(4)
STREAM = RECORDS.filter(is_odd)
DOCUMENTS = Dataset.from_arrays(tokens=np.ones((10, 3), np.int32))

EXAMPLES = {
    "FromSource": RECORDS,
    "FromIterable": Dataset.from_iterable([1, 2, 3]),
    "Transformed, random_map after repeat": RECORDS.repeat(3).random_map(noisy, seed=1),
    "Transformed, map_with_index after batch": BATCHES.map_with_index(number),
    "Transformed, in a stream": STREAM.map(halve, batched=True),
    "Transformed, after the batch of a stream": STREAM.batch(2).random_keys(),
    "Seeded, above a repeat of batches": BATCHES.repeat(3).seed(3),
    "Guarded": RECORDS.on_error(policy),
    "Guarded, after the batch of a stream": STREAM.batch(2).on_error("replace", limit=5),
    "Skipping": RECORDS.on_error("skip", limit=2),
    "Shuffled, after batch": BATCHES.shuffle(),
    "WindowShuffled": RECORDS.shuffle(window=4),
    "WindowShuffled, in a stream": STREAM.shuffle(5, window=4),
    "BlockShuffled": RECORDS.shuffle(block=3),
    "BlockShuffled, with windows of batches": BATCHES.shuffle(5, block=2, window=4),
    "Sliced, take": RECORDS.take(4),
    "Sliced, skip of batches": BATCHES.skip(1),
    "Sliced, in a stream": STREAM.skip(2),
    "Sliced, after the batch of a stream": STREAM.repeat().batch(2).take(3),
    "Picked": RECORDS[[1, 1, 2]],
    "Sampled, of batches": BATCHES.sample([1, 2, 0], 5, seed=3),
    "StepsSkipped": BATCHES.repeat().skip_steps([(1, 4), (6, 7)]),
    "Without": RECORDS.without([3, 5]),
    "Without, masked": Dataset.from_arrays(x=np.arange(5)).without([3], fill="mask"),
    "Part": RECORDS.split(0.5, 0.5, seed=2)[1],
    "Repeated, after batch": BATCHES.repeat(3),
    "Repeated, in a stream": STREAM.repeat(2),
    "Repeated, after the batch of a stream": STREAM.batch(2).repeat(),
    "Concatenated": Dataset.concatenate([RECORDS, RECORDS.shuffle()]),
    "Mixed": Dataset.mix([RECORDS, RECORDS], [3, 1]),
    "Mixed, of streams": Dataset.mix([STREAM, RECORDS], stop="repeat"),
    "Zipped, of batches": Dataset.zip((BATCHES, BATCHES)),
    "Filtered": RECORDS.filter(is_odd, batched=True),
    "FlatMapped": RECORDS.flat_map(twice),
    "PackedRecords": DOCUMENTS.pack({"tokens": 8}, window=5),
    "WindowMapped": STREAM.apply(Drawn(window=5)),
    "Bucketed": DOCUMENTS.bucket([4, 8], [3, 2], window=5, drop_remainder=True),
    "Batched, after repeat": RECORDS.repeat(3).batch(4),
    "Batched, of a stream": RECORDS.flat_map(twice).batch(4, lanes=2, pad_remainder=True),
    "Unbatched": BATCHES.unbatch(),
    "Windowed": RECORDS.window(3, stride=2, gap=1),
    "Cached": RECORDS.map(halve).cache(),
    "Narrowed, after batch": dataset_of(Narrowed(node_of(BATCHES), Narrow(True))),
    "Narrowed, in a stream": dataset_of(Narrowed(node_of(STREAM), Narrow(True))),
}

# The questions ----------------------------------------------------------------------------------


def code_of(member):
    """The function of a method or property; anything else as it is."""
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, cached_property) else member


def public(members):
    return {name: each for name, each in members.items() if not name.startswith("_")}


def is_final(member):
    return getattr(code_of(member), "__final__", False)


MEMBERS = public(vars(Node))
QUESTIONS = {name for name, member in MEMBERS.items() if not is_final(member)}


def stage_names(unit_stages):
    return " ".join(type(stage).__name__ for stage in unit_stages)


NOT_ASKED = "-"


def operator_of(make, is_asked):
    """The class of an operator, with those of its moves."""
    if not is_asked:
        return NOT_ASKED
    operator = make(Request(7))
    moves = [type(move).__name__ for move in operator.moves]
    return " after ".join([type(operator).__name__, *moves])


def above_of(node, build):
    repeats = (Repeats(None, node.repeats + 1),)
    return Above(stream_input_of(node), (), repeats, build.loose)


def reader_of(node):
    """The class of a reader, and the stages in the units that it reads."""
    if not node.is_stream or node.batched:
        return NOT_ASKED
    build = StreamBuild(node, 1, None)
    make = node.reader(build, above_of(node, build))
    monitor = Monitor([], set(), None)
    reading = SimpleNamespace(monitor=monitor, look_ahead=lambda number, lane: SimpleNamespace())
    units = [f"[{stage_names(plan.stages)}]" for plan in build.units]
    return " ".join([type(make(reading, 0)).__name__, *units])


def after_batch_of(node):
    if not node.is_stream or not node.batched or stream_cut(node) is node:
        return NOT_ASKED
    below = Lanes([])
    made = node.after_batch(below, StreamBuild(node, 1, None))
    return "unchanged" if made is below else type(made).__name__


def above_cut_of(node):
    if after_batch_of(node) is NOT_ASKED:
        return NOT_ASKED
    build = StreamBuild(node, 1, None)
    above = above_of(node, build)
    made = node.above_cut(build, above)
    if made is above:
        return "unchanged"
    repeats = [tuple(each) for each in made.repeats[len(above.repeats) :]]
    return f"[{stage_names(made.stages)}] {repeats}"


def lanes_of(node):
    try:
        node.check_lanes(2)
    except ChainError:
        return "one"
    return "any"


# How each question that takes arguments is asked.
CALLS = {
    "batch_rows_before": lambda node: (
        node.batch_rows_before(2) if node.batched and not node.is_stream else NOT_ASKED
    ),
    "epoch_of": lambda node: NOT_ASKED if node.is_stream else node.epoch_of(2),
    "fingerprint": lambda node: node.fingerprint(7),
    "seed_below": lambda node: node.seed_below(7),
    "batch_stages": lambda node: [each.stage for each in node.batch_stages()],
    "row_counts": lambda node: [
        tuple(vars(each).values()) for each in node.row_counts(uniform=False)
    ],
    "one_epoch": lambda node: node.one_epoch().stage,
    "check_lanes": lanes_of,
    "make_record_operator": lambda node: operator_of(
        node.make_record_operator, not node.is_stream and not node.batched
    ),
    "batch_operator": lambda node: operator_of(
        node.batch_operator, not node.is_stream and node.batched
    ),
    "reader": reader_of,
    "after_batch": after_batch_of,
    "above_cut": above_cut_of,
    # Attributes that are shown in a shorter form.
    "error_policy": lambda node: getattr(node.error_policy, "__name__", node.error_policy),
    "inputs": lambda node: [each.stage for each in node.inputs],
    "shuffled_blocks": lambda node: node.shuffled_blocks and node.shuffled_blocks.stage,
    "user_objects": lambda node: [name for name, _ in node.user_objects],
    "short_batches": lambda node: node.short_batches and [tuple(e) for e in node.short_batches],
}


def answers_of(node, questions):
    """What a node answers, as text."""
    found = {}
    for question in questions:
        ask = CALLS.get(question)
        found[question] = str(getattr(node, question) if ask is None else ask(node)) or "''"
    return found


def sheet_of(answers):
    """The answers as text: each answer with the questions that have it."""
    by_answer = {}
    for question, answer in sorted(answers.items()):
        by_answer.setdefault(answer, []).append(question)
    lines = sorted((len(answer), answer, " ".join(asked)) for answer, asked in by_answer.items())
    return "".join(f"{asked} = {answer}\n" for _, answer, asked in lines)


def read_sheet(text):
    answers = {}
    for line in text.splitlines():
        asked, _, answer = line.partition(" = ")
        for question in asked.split():
            assert question not in answers, f"{question} is answered twice"
            answers[question] = answer
    return answers


def read_sheets(text):
    """The sheets of all examples: each begins with a line that has its name in brackets."""
    sheets = re.split(r"^\[(.*)\]\n", text, flags=re.MULTILINE)[1:]
    return dict(zip(sheets[::2], sheets[1::2], strict=True))


ANSWERS = read_sheets(Path(__file__).with_name("node_answers.txt").read_text())


def check(node, expected, questions=QUESTIONS):
    """Raises if an answer is missing, superfluous, or another than expected."""
    wanted = read_sheet(expected)
    assert set(wanted) == set(questions), "a question without an answer, or the other way round"
    assert answers_of(node, questions) == wanted


# The table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_answers_of_a_node(name):
    node = node_of(EXAMPLES[name])
    assert type(node).__name__ == name.partition(",")[0]
    check(node, ANSWERS[name])


def test_every_example_has_answers():
    assert EXAMPLES.keys() == ANSWERS.keys()


def test_every_node_class_has_an_example():
    assert {name.partition(",")[0] for name in EXAMPLES} == set(nodes.__all__)


def test_every_question_with_arguments_is_asked():
    methods = {name for name in QUESTIONS if inspect.isfunction(MEMBERS[name])}
    assert methods <= set(CALLS) <= QUESTIONS


def package_modules():
    for module in pkgutil.walk_packages(loaderx.__path__, "loaderx."):
        if module.name.split(".")[1] in ("stages", "dataset", "plans", "loader"):
            yield importlib.import_module(module.name)


def node_classes(base=Node):
    """All classes of nodes in the package."""
    for each in base.__subclasses__():
        if each.__module__.startswith("loaderx."):
            yield each
            yield from node_classes(each)


def test_every_class_that_can_be_instantiated_is_listed():
    modules = list(package_modules())
    concrete = {each.__name__ for each in node_classes() if not inspect.isabstract(each)}
    assert concrete == set(nodes.__all__)
    names = {each.__name__ for each in node_classes()}
    for module in modules:
        for call in ast.walk(ast.parse(Path(module.__file__).read_text())):
            if isinstance(call, ast.Call):
                called = getattr(call.func, "id", getattr(call.func, "attr", None))
                assert called not in names or called in nodes.__all__, f"{module}: {called}"


def test_what_is_final_is_the_same_for_all():
    final = {name for name, member in MEMBERS.items() if is_final(member)}
    assert final == MEMBERS.keys() - QUESTIONS
    for each in node_classes():
        assert not final & vars(each).keys(), each


def test_no_field_hides_a_question():
    """A field needs a value on its class to be read before a question of the same name."""
    for each in node_classes():
        assert not [name for name in each._fields if name in MEMBERS], each


# What is forgotten is found ---------------------------------------------------------------------


class Same(KeepsPlaces):
    """A complete node class."""

    stage = "same()"
    unit_cost = "nothing"
    can_drop = False
    user_objects = ()

    def make_record_operator(self, request):
        return self.input.record_operator(request)

    def batch_operator(self, request):
        return self.input.batch_operator(request)

    def reader(self, build, above):
        return build.reader(self.input, above)

    def after_batch(self, below, build):
        return below


REQUIRED = sorted(Node.__abstractmethods__)


def same(made=Same):
    return made(node_of(Dataset.range(3)))


def test_the_complete_class_is_complete():
    check(same(), sheet_of(answers_of(same(), QUESTIONS)))


@pytest.mark.parametrize("question", REQUIRED)
def test_a_class_that_forgets_an_answer_cannot_be_instantiated(question):
    forgetful = type("Forgetful", (Same,), {question: vars(Node)[question]})
    with pytest.raises(TypeError, match=f"abstract class Forgetful .*{question}"):
        same(forgetful)


def test_a_class_that_keeps_a_wrong_default_is_found():
    """It draws random numbers and does not say so."""

    class Noisy(Same):
        stage = "noisy()"

    honest = type("Noisy", (Same,), {"stage": "noisy()", "is_random": True})
    expected = sheet_of(answers_of(same(honest), QUESTIONS))
    check(same(honest), expected)
    with pytest.raises(AssertionError, match="is_random"):
        check(same(Noisy), expected)


def test_a_question_that_the_table_forgets_is_found():
    expected = sheet_of(answers_of(same(), QUESTIONS - {"can_drop"}))
    with pytest.raises(AssertionError, match="without an answer"):
        check(same(), expected)


def test_a_new_question_is_found():
    expected = sheet_of(answers_of(same(), QUESTIONS))
    with pytest.raises(AssertionError, match="without an answer"):
        check(same(), expected, QUESTIONS | {"is_new"})


def test_a_stage_that_is_read_by_index_refuses_to_be_read_in_order():
    class Backwards(ByIndex, Same):
        pass

    with pytest.raises(AssertionError, match=r"same\(\) is read by index, not in order"):
        same(Backwards).reader(None, None)


if __name__ == "__main__":
    for name, dataset in EXAMPLES.items():
        print(f"[{name}]\n{sheet_of(answers_of(node_of(dataset), QUESTIONS))}")  # noqa: T201
