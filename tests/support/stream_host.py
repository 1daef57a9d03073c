"""One host of several, as a program: `test_stream_hosts.py` runs a few of them side by side.

    python stream_host.py HOST HOSTS STEPS FROM TO OUT

Reads STEPS batches of a mix of filtered, packed text from the state in FROM ("-": the beginning),
writes its own state to TO, and the rows to OUT.  If JAX_PORT is set, the hosts are processes of
`jax.distributed`: each batch becomes one global array, and OUT has what they computed of it
together.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from loaderx import DataLoader, Dataset


def documents(count: int, base: int) -> list[dict[str, np.ndarray]]:
    lengths = np.random.default_rng(base).integers(1, 40, count).tolist()
    return [{"tokens": np.arange(n, dtype=np.int32) + base + i} for i, n in enumerate(lengths)]


def is_long(record: dict[str, np.ndarray]) -> bool:
    return len(record["tokens"]) > 5


def dataset() -> Dataset:
    parts = [
        Dataset.from_source(documents(700, base)).shuffle(seed=base).filter(is_long)
        .pack({"tokens": 64}, window=50).repeat()
        for base in (1, 100_000)
    ]  # fmt: skip
    return Dataset.mix(parts, [2, 1]).random_keys().batch(16, lanes=8)


def global_sums(batches: list[dict[str, np.ndarray]]) -> np.ndarray:
    """A number for each global batch that depends on every token and on its place."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    sharding = NamedSharding(mesh, PartitionSpec("rows"))

    @jax.jit
    def weigh(tokens: jax.Array) -> jax.Array:
        weights = jnp.arange(tokens.size, dtype=jnp.uint32).reshape(tokens.shape) * 2 + 1
        return (tokens.astype(jnp.uint32) * weights).sum(dtype=jnp.uint32)

    out = []
    for batch in batches:
        tokens = jax.make_array_from_process_local_data(sharding, batch["tokens"])
        assert tokens.shape == (16, 64)
        out.append(np.asarray(weigh(tokens).addressable_data(0)))
    return np.array(out)


def main() -> None:
    host, hosts, steps = map(int, sys.argv[1:4])
    source, target, out = sys.argv[4:]
    port = os.environ.get("JAX_PORT")
    if port:
        import jax

        jax.distributed.initialize(
            f"localhost:{port}", num_processes=hosts, process_id=host, initialization_timeout=60
        )
        host, hosts = jax.process_index(), jax.process_count()
    iterator = iter(DataLoader(dataset(), shard=(host, hosts), engine="threads", num_workers=1))
    if source != "-":
        iterator.set_state(json.loads(Path(source).read_text()))
    batches = [next(iterator) for _ in range(steps)]
    Path(target).write_text(json.dumps(iterator.get_state()))
    if port:
        np.savez(out, sums=global_sums(batches))
        return
    np.savez(out, **{f"{i}.{key}": leaf for i, b in enumerate(batches) for key, leaf in b.items()})
    iterator.close()


if __name__ == "__main__":
    main()
