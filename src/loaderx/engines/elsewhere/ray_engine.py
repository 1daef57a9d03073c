"""`engines.Ray`: actors on the machines of a Ray cluster, or of one that runs here alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from loaderx.engines.base import Work, check_counts, warn_if_in_order
from loaderx.errors import ArgumentTypeError, check_bool, check_int
from loaderx.frozen import Frozen

if TYPE_CHECKING:
    from loaderx.engines.elsewhere.ray_session import RaySession


class Ray(Frozen):
    """Workers that Ray places, starts again when they die, and ends with their loader.

    They run the functions of the dataset, and what they send through Ray is unpickled here: use a
    cluster that you trust.  Needs the extra ``ray``.  See ``docs/cluster.md``.

    Args:
        num_workers: actors; by default as many as the CPUs of the cluster allow.
        resources: what an actor takes of its machine, such as ``{"CPU": 2, "cpu_node": 1}``; by
            default one CPU for each of its threads.
        threads: tasks that an actor makes at once.
        address: of the cluster, as `ray.init` takes it; None: the one that this process is
            connected to, or that ``RAY_ADDRESS`` names, or that runs on this machine already, else
            a new one on this machine.
        prefetch: finished elements to keep ready; by default as many as workers, at least 2.
        direct: get batches over a connection to each actor, where one can be made; else, and if
            False, through Ray's store.
    """

    num_workers: int | None = None
    resources: Mapping[str, float] | None = None
    threads: int = 1
    address: str | None = None
    prefetch: int | None = None
    direct: bool = True

    def __post_init__(self) -> None:
        check_counts("num_workers", self.num_workers, self.prefetch)
        check_int("threads", self.threads, least=1)
        check_bool("direct", self.direct)
        if self.address is not None and not isinstance(self.address, str):
            raise ArgumentTypeError(f"`address` must be text or None, got {self.address!r}.")
        resources = self.resources
        if resources is not None and not (
            isinstance(resources, Mapping)
            and all(isinstance(name, str) for name in resources)
            and all(type(share) in (int, float) and share >= 0 for share in resources.values())
        ):
            raise ArgumentTypeError(
                '`resources` must be a dict of names and numbers, such as {"CPU": 2, "cpu_node": '
                f"1}}, got {resources!r}."
            )

    def session(self, work: Work) -> RaySession:
        from loaderx.engines.elsewhere.ray_session import RaySession  # late: brings cloudpickle

        warn_if_in_order(work, "engines.Ray")
        return RaySession(work, self)
