"""Several datasets as one: concatenate, mix and zip."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from loaderx.chain.base import LIMIT, Node, ShortBatches, checked_length
from loaderx.chain.encoding import Encoded, digest, encode, stage_text
from loaderx.chain.fingerprint import default_seed, fingerprints, identity
from loaderx.errors import ArgumentError, ChainError
from loaderx.order.mixing import Phase, Schedule, phases, schedule
from loaderx.tree import Structure, Tree, describe, flatten


class Joined(Node):
    """Several datasets as one: the base of concatenate, mix and zip."""

    components: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.components

    @property
    def kind(self) -> str:
        raise NotImplementedError

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

    def digests(self, seed: int) -> list[Encoded]:
        """The fingerprints of each dataset, as one digest."""
        chains = [
            fingerprints(node, default_seed(node, seed), whole=True) for node in self.components
        ]
        return [digest(encode([identity(text) for text in texts]).encode()) for texts in chains]


class Concatenated(Joined):
    def __post_init__(self) -> None:
        self._check_components()
        self._refuse_streams(
            "Concatenate before the stage that makes it one (filter, flat_map, pack, ...), or use "
            "Dataset.mix."
        )
        self._check_specs()
        for number, node in enumerate(self.components[:-1]):
            if node.length is None:
                raise ChainError(
                    f"concatenate: dataset {number} is endless, nothing can follow it."
                )

    @property
    def kind(self) -> str:
        return "concatenate"

    @cached_property
    def length(self) -> int | None:
        total = 0
        for node in self.components:
            if node.length is None:
                return None
            total += node.length
        return checked_length(total)

    @cached_property
    def limit(self) -> int:
        return min(LIMIT, sum(node.limit for node in self.components))

    @property
    def stage(self) -> str:
        return f"Dataset.concatenate({len(self.components)} datasets)"

    def fingerprint(self, seed: int) -> str:
        return stage_text("concatenate", {"datasets": self.digests(seed)}, self)


class Mixed(Joined):
    tickets: tuple[int, ...]
    stop: Literal["first_exhausted", "repeat", "all_exhausted"] = "first_exhausted"

    def __post_init__(self) -> None:
        self._check_components()
        self._check_specs()
        if self.stop == "all_exhausted":
            self._refuse_streams(
                "stop='all_exhausted' needs datasets of known length: mix them before the stage "
                "that makes a stream (filter, flat_map, pack, ...), or use stop='repeat'."
            )
            for number, node in enumerate(self.components):
                if node.length is None:
                    raise ChainError(
                        f"mix: dataset {number} is endless, so that not all can be exhausted. "
                        "Leave its .repeat() out, or use stop='repeat'."
                    )

    @property
    def kind(self) -> str:
        return "mix"

    @cached_property
    def schedule(self) -> Schedule:
        return schedule(self.tickets)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """What is mixed from where on, if the mix goes on until all datasets have ended."""
        return phases(self.tickets, [node.length or 0 for node in self.components])

    @cached_property
    def ends(self) -> bool:
        several = any if self.stop == "first_exhausted" else all
        return several(node.ends for node in self.components)

    @cached_property
    def length(self) -> int | None:
        if self.is_stream:
            return None
        if self.stop == "all_exhausted":
            return checked_length(sum(node.length or 0 for node in self.components))
        ends = [
            None if node.length is None else self.schedule.position(c, node.length)
            for c, node in enumerate(self.components)
        ]
        finite = [end for end in ends if end is not None]
        if self.stop == "repeat":
            return None if len(finite) < len(ends) else checked_length(max(finite))
        return checked_length(min(finite), self._numbered) if finite else None

    @cached_property
    def _numbered(self) -> int:
        """The elements of a mix in which every row of an endless component has a number."""
        ends = [
            self.schedule.position(c, node.limit)
            for c, node in enumerate(self.components)
            if node.length is None
        ]
        return min([LIMIT, *ends])

    @cached_property
    def limit(self) -> int:
        return LIMIT if self.is_stream else self._numbered if self.length is None else self.length

    @property
    def repeats_here(self) -> int:
        return int(self.stop == "repeat")

    @property
    def stage(self) -> str:
        tickets = ":".join(map(str, self.tickets))
        stop = "" if self.stop == "first_exhausted" else f", stop={self.stop!r}"
        return f"Dataset.mix({len(self.components)} datasets, {tickets}{stop})"

    def fingerprint(self, seed: int) -> str:
        return stage_text("mix", {"datasets": self.digests(seed)}, self)


class Zipped(Joined):
    structure: Structure

    @property
    def is_aligned(self) -> bool:
        return True

    def __post_init__(self) -> None:
        self._check_components()
        self._refuse_streams(
            "Nobody knows which of its elements stand side by side: zip before the stage that "
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
                "zip: the last batches differ in size, or may differ, so that rows would stand "
                "beside nothing. Use drop_remainder=True, or zip the records and batch them "
                "together."
            )

    @property
    def kind(self) -> str:
        return "zip"

    @property
    def length(self) -> int | None:
        return self.components[0].length

    @cached_property
    def limit(self) -> int:
        return min(node.limit for node in self.components)

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
        named = {"datasets": self.digests(seed), "names": self.structure.paths()}
        return stage_text("zip", named, self, without=("structure",))


def _difference(one: Tree, other: Tree, i: int, j: int, skip: int) -> str | None:
    """What differs between two specs, in words, the first ``skip`` axes aside; None if nothing."""
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
