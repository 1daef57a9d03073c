"""Several datasets as one: the common code of concatenate, mix and zip.

Concatenate and mix take each element from one component; a `Router` says from which.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from loaderx.chain.encoding import Encoded, digest, encode, parse_stage
from loaderx.chain.families import ChangesPlaces
from loaderx.chain.fingerprint import fingerprints, identity
from loaderx.chain.leaks import changing_parts
from loaderx.chain.node import Node
from loaderx.errors import ArgumentError, ChainError, RecordError, StackError, warn_user
from loaderx.memory import Layout
from loaderx.reading.addresses import (
    Addresses,
    MergedAddresses,
    MergedRecords,
    MergedSteps,
    SourceAddresses,
    Steps,
    Which,
    groups,
)
from loaderx.reading.context import ReadContext
from loaderx.reading.error_text import within
from loaderx.reading.operators import (
    BatchOperator,
    BatchOperatorOf,
    Move,
    RecordOperator,
    RecordOperatorOf,
    Request,
    Sharing,
    SourceRecords,
    shared_by_all,
)
from loaderx.reading.rows import Positions, Record, Rows
from loaderx.reading.trails import Found, Sought, Traced, Trail, find_through
from loaderx.rng import BRANCH, Keys, fold, fold_int
from loaderx.sources.adapt.array_parts import ArrayParts
from loaderx.tree import Tree, describe, flatten

_WORTH_A_GATHER = 16  # rows of one source in a batch; fewer are faster to copy one by one


class Joined(ChangesPlaces):
    """Several datasets as one: the base of concatenate, mix and zip."""

    components: tuple[Node, ...]

    unit_cost = "records"
    can_drop = False
    user_objects = ()

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.components

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of the stage in messages."""

    @property
    def part_names(self) -> Sequence[str]:
        """The name of each component; its number, where it has none."""
        return [str(number) for number in range(len(self.components))]

    def _check_components(self) -> None:
        if not self.components:
            raise ArgumentError(f"{self.kind} needs at least one dataset.")
        if len({node.batched for node in self.components}) > 1:
            raise ChainError(f"{self.kind}: some datasets are batched and some are not.")
        if self.is_stream and self.batched:
            raise ChainError(
                f"{self.kind} of batched streams: join the records, and put .batch(...) after it."
            )

    def _refuse_streams(self, advice: str) -> None:
        for number, node in enumerate(self.components):
            if node.is_stream:
                raise ChainError(f"{self.kind}: dataset {number} is a stream. {advice}")

    def _check_specs(self) -> None:
        known = [(i, node.spec) for i, node in enumerate(self.components) if node.spec is not None]
        for number, spec in known[1:]:
            skip = int(self.batched)  # batch sizes may differ
            if problem := _difference(known[0][1], spec, known[0][0], number, skip):
                raise ChainError(f"{self.kind}: {problem} Make them alike in .map().")

    @cached_property
    def spec(self) -> Tree | None:
        specs = [node.spec for node in self.components]
        if any(spec is None for spec in specs):
            return None
        first, *others = specs
        same = all(repr(spec) == repr(first) for spec in others)
        return first if same else None

    def chains(self, seed: int) -> list[list[str]]:
        """The fingerprints of each dataset."""
        return [
            fingerprints(node, self.component_seed(number, seed), whole=True)
            for number, node in enumerate(self.components)
        ]

    def parts(self, seed: int) -> dict[str, object]:
        """The datasets in a saved state: a digest of each, and the names of their functions.

        The names are apart, since `identity` leaves them out: a changed name only gives a warning.
        """
        chains = self.chains(seed)
        digests = [digest(encode([identity(text) for text in texts]).encode()) for texts in chains]
        found = [parse_stage(text) for texts in chains for text in texts if "function=" in text]
        names = [
            stage.values["function"]
            for stage in found
            if stage is not None and "function" in stage.values
        ]
        named = {"function": Encoded(f"[{', '.join(names)}]")} if names else {}
        return {"datasets": digests, **named}

    def warn_of_two_orders(self) -> None:
        """Warns if parts of one shuffled dataset are joined: each would be shuffled differently."""
        found: dict[int, tuple[str, Node]] = {}  # by shuffle: its order, and the first part
        for number, component in enumerate(self.components):
            for part, shuffle in changing_parts(component):
                order = shuffle.fingerprint(self.component_seed(number, 0))
                known, first = found.setdefault(id(shuffle), (order, part))
                if known != order:
                    warn_user(
                        f"{self.kind}: {first.stage} and {part.stage} are parts of the same "
                        f"{shuffle.stage}, but each dataset that is joined shuffles in its own "
                        "order, so they share records and miss others. Split first, one, other = "
                        "ds.split(0.5, 0.5), and shuffle the parts; or give the shuffle a seed, "
                        ".shuffle(seed=0), for one order."
                    )
                    return

    def component_seed(self, number: int, seed: int) -> int:
        """The default seed of a component: its own, or one derived from that of the join.

        The first component keeps the seed of the join, so it draws as it does alone.  `joins` tells
        component 1 of component 0 from component 0 of component 1.
        """
        branch = fold_int(seed, number, BRANCH + (self.joins << 8)) if number else seed
        return self.components[number].default_seed(branch)

    def of_component(self, number: int, request: Request) -> Request:
        """The request for a component."""
        return request.replace(seed=self.component_seed(number, request.seed), full=None)


def _difference(one: Tree, other: Tree, i: int, j: int, skip: int) -> str | None:
    """Describes how two specs differ, without the first ``skip`` axes; None if they do not."""
    leaves, structure = flatten(one)
    others, other_structure = flatten(other)
    if structure is not other_structure:
        return (
            f"elements of dataset {j} look like {describe(other_structure)}, "
            f"those of dataset {i} like {describe(structure)}."
        )
    for path, a, b in zip(structure.paths(), leaves, others, strict=True):
        if a.dtype != b.dtype or a.shape[skip:] != b.shape[skip:]:
            return f'leaf "{path}" is {b!r} in dataset {j} and {a!r} in dataset {i}.'
    return None


# Elements of one component each -----------------------------------------------------------------


class Router:
    """Finds the component of a position, and the position there; and the way back."""

    def route(
        self, epochs: Keys, positions: Positions
    ) -> tuple[npt.NDArray[np.intp], Keys, Positions]:
        which, inside = self.locate(positions)
        return which, epochs, inside

    def locate(self, positions: Positions) -> tuple[npt.NDArray[np.intp], Positions]:
        """The component of each position, and its number among the elements of the component."""
        raise NotImplementedError

    def moves(self, component: int) -> Sequence[Move]:
        """The moves from these numbers to positions in the component."""
        return ()

    def counts(self, component: int, limits: Positions) -> Positions:
        """The elements of a component before each limit."""
        raise NotImplementedError

    def places(self, component: int, numbers: Positions) -> Positions:
        """The position of elements of a component: the inverse of `locate`."""
        raise NotImplementedError


class Merges(Traced):
    """The base of operators that take every element from one component."""

    children: Sequence[Traced]
    router: Router

    def below(self, trail: Trail) -> Iterator[tuple[Traced, Trail]]:
        which, inside = self.router.locate(trail.positions)
        trail = trail._replace(positions=inside)
        for component, places in groups(which):
            mine = trail.pick(places).through(self.router.moves(component))
            yield self.children[component], mine.into(component)

    def find_below(self, sought: Sought) -> Found:
        (component, *path), router = sought.path, self.router
        inner = sought._replace(limits=router.counts(component, sought.limits), path=tuple(path))
        found = find_through(router.moves(component), inner, self.children[component].find)
        return found.at(router.places(component, found.positions), sought.limits)


class Merged(Joined):
    """The base of joins that take every element from one component."""

    is_one_dataset = False

    @abstractmethod
    def router(self) -> Router:
        """The component of each element, and its position there."""

    def make_record_operator(self, request: Request) -> RecordOperator:
        children = [
            part.record_operator(self.of_component(number, request))
            for number, part in enumerate(self.components)
        ]
        return MergeRecords(self.stage, children, self.router())

    def batch_operator(self, request: Request) -> BatchOperator:
        children = [
            part.batch_operator(self.of_component(number, request))
            for number, part in enumerate(self.components)
        ]
        return MergeBatches(self.stage, children, self.router(), self.batch_size)


class MergeRecords(Merges, RecordOperatorOf[MergedAddresses]):
    """Concatenate and mix: every row comes from one component."""

    children: Sequence[RecordOperator]

    def __init__(self, stage: str, children: Sequence[RecordOperator], router: Router) -> None:
        super().__init__(stage)
        self.children = children
        self.router = router
        self.arrays = ReadArrays.of(children)

    def locate(self, epochs: Keys, positions: Positions) -> MergedAddresses:
        which, epochs, positions = self.router.route(epochs, positions)
        if self.arrays is not None:
            return self._records(which, epochs, positions)
        return MergedAddresses.of_parts(which, self._resolved(which, epochs, positions))

    def _resolved(
        self, which: Which, epochs: Keys, positions: Positions
    ) -> Iterator[tuple[int, Which, Addresses]]:
        for component, places in groups(which):
            mine = epochs if epochs.size == 1 else epochs[places]
            yield component, places, self.children[component].resolve(mine, positions[places])

    def _records(self, which: Which, epochs: Keys, positions: Positions) -> MergedRecords:
        """Records of plain sources, in one array: they are grouped by source for each batch."""
        if not any(child.moves for child in self.children):
            return MergedRecords(which, positions, epochs)
        index, keys = np.empty_like(positions), np.empty(len(which), np.uint64)
        for _, places, rows in self._resolved(which, epochs, positions):
            assert isinstance(rows, SourceAddresses)
            index[places], keys[places] = rows.index, rows.epochs
        return MergedRecords(which, index, keys)

    def read(self, addresses: MergedAddresses, context: ReadContext) -> Rows:
        if self.arrays is not None and self.arrays.is_better(addresses):
            return context.read(self.arrays, addresses)
        parts = [
            (places, self._read_part(component, part, context))
            for component, places, part in addresses.parts
        ]
        if len(parts) == 1:
            return parts[0][1]
        if all(rows.is_stacked for _, rows in parts):
            return self._interleave(addresses, parts, context)
        out: list[Record] = [None] * len(addresses)
        for places, rows in parts:
            for place, record in zip(places.tolist(), rows.records(), strict=True):
                out[place] = record
        return Rows.of_records(out)

    def source_records(self, addresses: MergedAddresses) -> Iterator[SourceRecords]:
        for component, _, part in addresses.parts:
            yield from self.children[component].source_records(part)

    @property
    def reads_each(self) -> bool:
        return all(child.reads_each for child in self.children)

    def each(self, addresses: MergedAddresses) -> Iterator[Record]:
        rows = {
            component: self.children[component].each(part) for component, _, part in addresses.parts
        }
        for component in addresses.which.tolist():
            try:
                record = next(rows[component])
            except RecordError as error:
                raise within(component, error) from error.__cause__
            yield record

    @property
    def sharing(self) -> Sharing:
        return shared_by_all(self.children)

    def _read_part(self, component: int, addresses: Addresses, context: ReadContext) -> Rows:
        before = len(context.failures)
        try:
            rows = context.read(self.children[component], addresses)
        except RecordError as error:
            raise within(component, error) from error.__cause__
        if len(context.failures) > before:
            context.name_failures(before, f" of dataset {component}")
        return rows

    def _interleave(
        self,
        addresses: MergedAddresses,
        parts: list[tuple[Positions, Rows]],
        context: ReadContext,
    ) -> Rows:
        count, first = len(addresses), parts[0][1]
        structure, paths = first.structure, first.structure.paths()
        targets = context.lend(
            Layout.of(*[((count, *leaf.shape[1:]), leaf.dtype) for leaf in first.leaves])
        )
        known = addresses.parts[0][0]
        for (component, _, _), (places, rows) in zip(addresses.parts, parts, strict=True):
            if rows.structure is not structure:
                raise StackError(
                    f"{self.stage}: dataset {component} has the leaves {rows.structure.paths()}, "
                    f"dataset {known} has {structure.paths()}."
                )
            for path, target, leaf in zip(paths, targets, rows.leaves, strict=True):
                if leaf.dtype != target.dtype or leaf.shape[1:] != target.shape[1:]:
                    raise StackError(
                        f'{self.stage}: leaf "{path}" is {leaf.dtype}{list(leaf.shape[1:])} in '
                        f"dataset {component} and {target.dtype}{list(target.shape[1:])} in "
                        f"dataset {known}."
                    )
                target[places] = leaf
        return Rows.of_columns(structure.build(targets), count)

    def keys(self, addresses: MergedAddresses) -> Keys:
        if isinstance(addresses, MergedRecords):
            rows = SourceAddresses(addresses.epochs, addresses.numbers)
            return fold(self.children[0].keys(rows), addresses.which, BRANCH)
        out = np.empty(len(addresses), np.uint64)
        for component, places, part in addresses.parts:
            branch = np.array([component], np.uint64)
            out[places] = fold(self.children[component].keys(part), branch, BRANCH)
        return out

    def index(self, addresses: MergedAddresses, number: int) -> tuple[int, str]:
        ((component, _, part),) = addresses.cut(number, number + 1).parts
        index, name = self.children[component].index(part, 0)
        return index, f"{name} of dataset {component}"

    def relocate(self, addresses: MergedAddresses, attempt: int) -> MergedAddresses:
        parts = (
            (component, places, self.children[component].relocate(part, attempt))
            for component, places, part in addresses.parts
        )
        return MergedAddresses.of_parts(addresses.which, parts)


class ReadArrays:
    """Copies single rows of array sources, where a batch has few rows of each source."""

    stage = "source"

    def __init__(self, arrays: ArrayParts, count: int) -> None:
        self._arrays, self._count = arrays, count

    @staticmethod
    def of(children: Sequence[RecordOperator]) -> ReadArrays | None:
        sources = [child.array_source() for child in children]
        found = [source for source in sources if source is not None]
        arrays = ArrayParts.of(found) if len(found) == len(sources) else None
        return None if arrays is None else ReadArrays(arrays, len(sources))

    def is_better(self, addresses: MergedAddresses) -> bool:
        most = len(addresses) // _WORTH_A_GATHER
        return self._count > most and len(set(addresses.which.tolist())) > most

    def read(self, addresses: MergedAddresses, context: ReadContext) -> Rows:
        tree = self._arrays.gather(addresses.which, addresses.numbers, context.lend)
        return Rows.of_columns(tree, len(addresses))


class MergeBatches(Merges, BatchOperatorOf[MergedSteps, tuple[int, object]]):
    """Concatenate and mix of batched datasets: every batch comes from one component."""

    children: Sequence[BatchOperator]

    def __init__(
        self, stage: str, children: Sequence[BatchOperator], router: Router, size: int | None
    ) -> None:
        super().__init__(stage, size)
        self.children = children
        self.router = router

    def locate(self, epochs: Keys, numbers: Positions) -> MergedSteps:
        which, epochs, inside = self.router.route(epochs, numbers)
        ordinal = np.zeros(len(numbers), np.int64)
        components: dict[int, Steps] = {}
        offsets: dict[int, int] = {}
        offset = 0
        for component, places in groups(which):
            ordinal[places] = np.arange(len(places))
            mine = epochs if epochs.size == 1 else epochs[places]
            components[component] = self.children[component].steps(mine, inside[places])
            offsets[component] = offset
            offset += components[component].row_count
        return MergedSteps(which.tolist(), ordinal.tolist(), components, offsets)

    def read(self, addresses: tuple[int, object], context: ReadContext) -> Tree:
        component, inner = addresses
        return context.read(self.children[component], inner)

    def source_records(self, addresses: tuple[int, object]) -> Iterator[SourceRecords]:
        component, inner = addresses
        return self.children[component].source_records(inner)

    def keys(self, steps: MergedSteps) -> Keys:
        parts = [
            fold(self.children[component].keys(inner), np.array([component], np.uint64), BRANCH)
            for component, inner in steps.components.items()
        ]
        return np.concatenate(parts)
