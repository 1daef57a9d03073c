"""Stages that say how the others run: the default seed, and what happens to failures."""

from __future__ import annotations

from typing import Any

from loaderx.chain.base import Single
from loaderx.chain.batches import Unbatched
from loaderx.chain.encoding import stage_text
from loaderx.errors import ChainError


class Seeded(Single):
    """The default seed of the chain that it stands in, above and below."""

    number: int

    @property
    def stage(self) -> str:
        return f"seed({self.number})"


class Guarded(Single):
    policy: Any  # "replace", in a stream also "skip", or a function of the error
    max_failures: int | None = None

    def __post_init__(self) -> None:
        if self.policy == "skip":
            return
        for node in self.input.below():
            whole = isinstance(node, Unbatched) or (len(node.inputs) > 1 and node.is_aligned)
            if whole and not node.ends:
                raise ChainError(
                    f"on_error after .{node.stage.removeprefix('Dataset.')} of an endless dataset: "
                    "there is no end to choose another record from. Put .repeat() after it."
                )

    @property
    def stage(self) -> str:
        return on_error_stage(self.policy, self.max_failures)

    def fingerprint(self, seed: int) -> str:
        values = {"policy": policy_name(self.policy)}
        drawn = {} if self.policy == "skip" else {"seed": seed}  # for the choice of another record
        # A limit changes no record.
        return stage_text("on_error", {**values, **drawn}, self, without=("policy", "max_failures"))


def on_error_stage(policy: Any, limit: int | None) -> str:
    """The stage as a user would write it."""
    return f"on_error({policy_name(policy)!r}{'' if limit is None else f', limit={limit}'})"


def policy_name(policy: Any) -> str:
    return policy if isinstance(policy, str) else "function"
