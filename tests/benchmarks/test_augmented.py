"""The check of augmentation whose random numbers are a contender's own."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.benchmarks


@pytest.fixture
def look(suite):
    """Augments with NumPy, lets ``change`` spoil it, and says what is wrong."""
    from suite.augmented import Effects, make_images, with_numpy, wrong_effects

    def looked(workload, change=None, rows=512, batch=64):
        images = make_images(32 if workload == "aug32" else 128, rows)
        rng, effects = np.random.default_rng(0), Effects(workload)
        for start in range(0, rows, batch):
            source = {"image": images[start : start + batch], "label": np.arange(batch)}
            made = with_numpy(source, rng, workload)
            effects.add(change(made, source) if change else made)
        return wrong_effects(effects.result(), workload)

    return looked


@pytest.mark.parametrize(("workload", "rows"), [("aug32", 512), ("aug128", 256)])
def test_as_described(look, workload, rows):
    assert look(workload, rows=rows) is None


def spoiled(rng, **options):
    """Another augmentation: without a step, or with one draw for all records."""
    from suite.augmented import adjust
    from suite.workloads import crop_into

    def change(made, source):
        rows = len(source["image"])
        top, left = (options.get("corner", rng.integers(0, 5, rows)) for _ in range(2))
        flipped = options.get("flipped", rng.random(rows) < 0.5)
        cut = np.empty((rows, 28, 28, 3), np.uint8)
        crop_into(cut, source["image"], np.column_stack([top, left, flipped]).tolist())
        factor = options.get("factor", rng.uniform(0.8, 1.2, rows)).astype(np.float32)
        shift = options.get("shift", rng.uniform(-0.1, 0.1, rows)).astype(np.float32)
        noise = options.get("noise", rng.standard_normal)(cut.shape).astype(np.float32)
        return {**made, "image": adjust(cut, noise, shift, factor, np.empty_like(noise))}

    return change


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flipped": np.zeros(64, bool)}, "fraction of flips is 0, expected 0.5"),
        ({"factor": np.ones(64)}, "deviation of contrast is "),
        ({"shift": np.zeros(64)}, "deviation of brightness is "),
        ({"corner": np.full(64, 2)}, "deviation of top is "),
        ({"noise": np.zeros}, "deviation of noise is "),
        (
            {"noise": lambda shape: np.random.default_rng(2).uniform(-(3**0.5), 3**0.5, shape)},
            "fourth moment of noise is 1.",
        ),
    ],
)
def test_what_is_missing_is_named(look, options, said):
    change = spoiled(np.random.default_rng(1), **options)
    assert (look("aug32", change) or "nothing").startswith(said)


def test_one_draw_for_a_whole_batch_is_wrong(look):
    factors, rng = iter(np.linspace(0.8, 1.2, 32)), np.random.default_rng(1)

    def change(made, source):
        return spoiled(rng, factor=np.full(64, next(factors)))(made, source)

    assert "contrast within a batch is 0" in (look("aug32", change, rows=2048) or "")


def test_other_numbers(look):
    bytes_again = look("aug32", lambda made, _: {**made, "image": made["image"].astype(np.uint8)})
    assert bytes_again == "images of uint8 and of shape (28, 28, 3)"
    unclipped = look("aug32", lambda made, _: {**made, "image": made["image"] * 2})
    assert unclipped is not None
    assert unclipped.endswith("not within 0 and 1")
