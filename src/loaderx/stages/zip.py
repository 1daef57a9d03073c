"""zip: elements of several datasets side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from loaderx.chain.encoding import stage_text
from loaderx.chain.families import ByIndex
from loaderx.chain.row_counts import ShortBatches
from loaderx.errors import ChainError
from loaderx.reading.addresses import ZippedAddresses, ZippedSteps
from loaderx.reading.context import ReadContext
from loaderx.reading.operators import (
    BatchOperator,
    BatchOperatorOf,
    RecordOperator,
    RecordOperatorOf,
    Request,
    Sharing,
    SourceRecords,
    shared_by_all,
)
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.reading.trails import Found, Sought, Traced, Trail
from loaderx.rng import BRANCH, Keys, fold
from loaderx.stages.join import Joined
from loaderx.tree import Structure, Tree


class Zipped(ByIndex, Joined):
    """One element of each component, in a tree of this structure."""

    structure: Structure

    kind = "zip"
    is_aligned = True
    is_one_dataset = True

    def __post_init__(self) -> None:
        self._check_components()
        self._refuse_streams(
            "It is not known which of its elements stand side by side: zip before the stage that "
            "makes it one (filter, flat_map, pack, ...)."
        )
        lengths = [node.length for node in self.components]
        if len(set(lengths)) > 1:
            listed = ", ".join("endless" if n is None else str(n) for n in lengths)
            raise ChainError(f"zip needs datasets of one length, got {listed}. Cut with .take(n).")
        if len({node.batch_size for node in self.components}) > 1:
            raise ChainError("zip: the batch sizes differ.")
        first, *others = (node.short_batches for node in self.components)
        if self.batched and (first is None or any(other != first for other in others)):
            raise ChainError(
                "zip: the last batches differ in size, or may differ, so some rows would have no "
                "partner. Use drop_remainder=True, or zip the records and batch them together."
            )

    @property
    def length(self) -> int | None:
        return self.components[0].length

    @cached_property
    def limit(self) -> int:
        return min(node.limit for node in self.components)

    @property
    def part_names(self) -> Sequence[str]:
        return self.structure.paths()

    @cached_property
    def short_batches(self) -> tuple[ShortBatches, ...] | None:
        return self.components[0].short_batches

    @cached_property
    def spec(self) -> Tree | None:
        specs = [node.spec for node in self.components]
        if any(spec is None for spec in specs):
            return None
        return self.structure.build(specs)

    @property
    def stage(self) -> str:
        return f"Dataset.zip({len(self.components)} datasets)"

    def fingerprint(self, seed: int) -> str:
        named = {**self.parts(seed), "names": self.structure.paths()}
        return stage_text("zip", named, self, without=("structure",))

    def make_record_operator(self, request: Request) -> RecordOperator:
        children = [
            part.record_operator(self.of_component(number, request).replace(guarded=False))
            for number, part in enumerate(self.components)
        ]
        return ZipRecords(self.stage, children, self.structure)

    def batch_operator(self, request: Request) -> BatchOperator:
        children = [
            part.batch_operator(self.of_component(number, request))
            for number, part in enumerate(self.components)
        ]
        return ZipBatches(self.stage, children, self.structure, self.batch_size)


class Zips(Traced):
    """The base of operators that take every element from all components."""

    children: Sequence[Traced]

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        for component, child in enumerate(self.children):
            yield child, trail.into(component)

    def find_below(self, sought: Sought) -> Found:
        component, *path = sought.path
        return self.children[component].find(sought._replace(path=tuple(path)))


class ZipRecords(Zips, RecordOperatorOf[ZippedAddresses]):
    """Every row comes from all components."""

    children: Sequence[RecordOperator]

    def __init__(
        self, stage: str, children: Sequence[RecordOperator], structure: Structure
    ) -> None:
        super().__init__(stage)
        self.children = children
        self.structure = structure

    def locate(self, epochs: Keys, positions: Positions) -> ZippedAddresses:
        return ZippedAddresses([child.resolve(epochs, positions) for child in self.children])

    def read(self, addresses: ZippedAddresses, context: ReadContext) -> Rows:
        parts = [
            context.read(child, part)
            for child, part in zip(self.children, addresses.parts, strict=True)
        ]
        build = self.structure.build
        if all(rows.is_stacked for rows in parts):
            return Rows.of_columns(build([rows.tree for rows in parts]), len(addresses))
        records = zip(*[rows.records() for rows in parts], strict=True)
        return Rows.of_records([build(row) for row in records])

    def source_records(self, addresses: ZippedAddresses) -> Iterator[SourceRecords]:
        for child, part in zip(self.children, addresses.parts, strict=True):
            yield from child.source_records(part)

    @property
    def reads_each(self) -> bool:
        return all(child.reads_each for child in self.children)

    def each(self, addresses: ZippedAddresses) -> Iterator[Record]:
        parts = zip(self.children, addresses.parts, strict=True)
        return map(self.structure.build, zip(*[child.each(part) for child, part in parts]))  # noqa: B905

    @property
    def sharing(self) -> Sharing:
        return shared_by_all(self.children)

    def keys(self, addresses: ZippedAddresses) -> Keys:
        first, *others = (
            child.keys(part) for child, part in zip(self.children, addresses.parts, strict=True)
        )
        for other in others:
            first = fold(first, other, BRANCH)
        return first

    def index(self, addresses: ZippedAddresses, number: int) -> tuple[int, str]:
        return self.children[0].index(addresses.parts[0], number)


class ZipBatches(Zips, BatchOperatorOf[ZippedSteps, list[object]]):
    """Every batch comes from all components."""

    children: Sequence[BatchOperator]

    def __init__(
        self, stage: str, children: Sequence[BatchOperator], structure: Structure, size: int | None
    ) -> None:
        super().__init__(stage, size)
        self.children = children
        self.structure = structure

    def locate(self, epochs: Keys, numbers: Positions) -> ZippedSteps:
        return ZippedSteps([child.steps(epochs, numbers) for child in self.children])

    def read(self, addresses: list[object], context: ReadContext) -> Tree:
        return self.structure.build(
            [
                context.read(child, part)
                for child, part in zip(self.children, addresses, strict=True)
            ]
        )

    def source_records(self, addresses: list[object]) -> Iterator[SourceRecords]:
        for child, part in zip(self.children, addresses, strict=True):
            yield from child.source_records(part)

    def keys(self, steps: ZippedSteps) -> Keys:
        first, *others = (
            child.keys(inner) for child, inner in zip(self.children, steps.components, strict=True)
        )
        for other in others:
            first = fold(first, other, BRANCH)
        return first
