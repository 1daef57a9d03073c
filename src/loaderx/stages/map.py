"""map, random_map, map_with_index, random_keys: what they do to an element is in `transforms`."""

from __future__ import annotations

from loaderx.chain.encoding import stage_text
from loaderx.chain.one_to_one import OneToOne


class Transformed(OneToOne):
    """map, random_map, map_with_index, random_keys"""

    kind: str
    name: str
    stacked: bool = False
    own_seed: int | None = None

    unit_cost = "records"

    @property
    def stage(self) -> str:
        name = repr(self.name) if self.transform.named == "name" else self.name
        seed = "" if self.own_seed is None else f", seed={self.own_seed}"
        stacked = ", batched=True" if self.stacked else ""
        options = "".join(f", {name}={value}" for name, value in self.transform.options.items())
        return f"{self.kind}({name}{seed}{stacked}{options})"

    def fingerprint(self, seed: int) -> str:
        named: dict[str, object] = {self.transform.named: self.name}
        if self.is_random:
            named["seed"] = self.seed_here(seed)
        return stage_text(
            self.kind,
            {**named, **self.transform.options},
            self,
            without=("kind", "transform", "name", "own_seed"),
            renamed={"stacked": "batched"},
        )
