"""The contract of stages that are read by index, as tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from loaderx import DataLoader, Dataset, LoaderxError
from loaderx.chain.node import Node
from loaderx.testing.any_stage_contract import AnyStageContract
from loaderx.testing.comparing import check, check_all_equal
from loaderx.testing.stage_work import digest, first, hide_at, is_any, until_failure
from loaderx.tree import Tree, as_array, flatten


class IndexStageContract(AnyStageContract):
    """Tests of a stage that is read by index; a subclass says how to apply it, and to what.

    >>> class TestDoubled(IndexStageContract):
    ...     def apply(self, dataset):
    ...         return dataset.map(lambda record: {"x": record["x"] * 2})
    ...
    ...     def example_records(self):
    ...         return [{"x": i} for i in range(7)]
    ...
    ...     def expected_records(self, records):
    ...         return [{"x": record["x"] * 2} for record in records]

    In a file ``test_*.py``, that is all: pytest runs the tests that ``TestDoubled`` inherits.

    >>> TestDoubled().test_records_are_as_expected()
    """

    is_one_to_one: bool = True
    """False for a stage that gives other records than one for each, or in another order."""

    def expected_records(self, records: list[Tree]) -> Sequence[Tree] | None:
        """The expected output for all records, in plain Python; None: not tested."""
        return None

    # What comes out -----------------------------------------------------------------------------

    def test_records_are_as_expected(self) -> None:
        """The dataset gives what `expected_records` says."""
        expected = self.expected_records(self._records())
        if expected is not None:
            check_all_equal(list(self._applied()), list(expected), "record")

    def test_by_index(self) -> None:
        """Single records, slices and the length agree with what is read in order."""
        dataset = self._applied()
        expected = list(dataset)
        check(len(dataset) == len(expected), f"its length is {len(dataset)}, not {len(expected)}.")
        found = [dataset[index] for index in range(len(expected))]
        check_all_equal(found, expected, "by its index, record")
        check_all_equal(list(dataset[3:11:2]), expected[3:11:2], "in a slice, record")
        check_all_equal(list(dataset[::-1]), expected[::-1], "backwards, record")

    def test_spec(self) -> None:
        """Where the spec is known, every record fits it."""
        dataset = self._applied()
        if dataset.element_spec is None:
            return
        specs, structure = flatten(dataset.element_spec)
        for number, record in enumerate(dataset):
            leaves, own = flatten(record)
            check(own is structure, f"record {number} has the leaves {own.paths()}.")
            for path, leaf, spec in zip(own.paths(), leaves, specs, strict=True):
                array = as_array(leaf)
                what = f"leaf {path!r} of record {number} is {array.dtype}{list(array.shape)}"
                check(spec.fits(array.dtype, array.shape), f"{what}; its spec says {spec!r}.")

    def test_records_move_with_their_results(self) -> None:
        """A stage that works on single records does the same to them in any order."""
        if not self.is_one_to_one or any(node.needs_positions for node in self._stages()):
            return
        order = np.random.default_rng(0).permutation(len(self._records()))
        found = list(self.apply(self._source()[order]))
        expected = list(self._applied())
        check_all_equal(found, [expected[i] for i in order], "in another order, record")

    def test_in_batches(self) -> None:
        """Batches have the records that are read one by one."""
        dataset = self._applied().map(digest)
        expected = [int(number) for number in dataset]
        found = [int(number) for batch in dataset.batch(3) for number in batch]
        check(found == expected, "in batches, other records come out.")

    def test_in_a_stream(self) -> None:
        """Behind a filter that drops nothing, the same records come out."""
        try:
            dataset = self.apply(self._source().filter(is_any))
        except LoaderxError:
            return  # it is for datasets of a known length
        if self.is_one_to_one:
            check_all_equal(list(dataset), list(self._applied()), "in a stream, record")
        self._check_states(dataset, list(dataset), ["inline"])

    # Where it runs ------------------------------------------------------------------------------

    def test_hosts(self) -> None:
        """1, 2 and 4 hosts read the same batches."""
        dataset = self._applied().map(digest).repeat().batch(8)
        expected = first(dataset, 6)
        for hosts in (1, 2, 4):
            loaders = [
                DataLoader(dataset, engine="inline", shard=(host, hosts)) for host in range(hosts)
            ]
            parts = [first(loader, 6) for loader in loaders]
            found = [np.concatenate(batch) for batch in zip(*parts, strict=True)]
            check_all_equal(found, expected, f"with {hosts} hosts, batch")

    # Failures -----------------------------------------------------------------------------------

    def test_a_failure_names_the_record_and_the_stage(self) -> None:
        """A record that the stage cannot work on is named, by its number in the source."""
        place = 4
        hidden = self._source().map_with_index(functools.partial(hide_at, place))
        _, error = until_failure(DataLoader(self.apply(hidden), engine="inline"))
        if error is None:
            return  # it does not look at records
        check(f"record {place}" in str(error), f"record {place} fails; the error says: {error}")
        told = any(node.stage in str(error) for node in self._stages())
        check(told, f"the error names no stage as the dataset's repr does: {error}")

    # Helpers ------------------------------------------------------------------------------------

    def _stages(self) -> list[Node]:
        dataset = self.apply(Dataset.from_source(list(self.example_records())))
        is_stream = dataset._node.is_stream
        check(not is_stream, f"apply gave a stream, for which there is StageContract:\n{dataset!r}")
        return super()._stages()
