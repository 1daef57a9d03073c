"""The workloads `step` and `remote`: their consumer, their server, their rows."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

pytestmark = pytest.mark.benchmarks


def batches_of(count):
    rng = np.random.default_rng(0)
    for number in range(count):
        image = rng.integers(0, 256, (8, 28, 28), dtype=np.uint8)
        yield {"image": image, "label": np.arange(8, dtype=np.int32) + 8 * number}


def test_a_step_sees_all_bytes_in_any_order(suite):
    pytest.importorskip("jax")
    from suite.training import SUM_MASK, TrainingStep

    batches = list(batches_of(6))
    sums = []
    for order in (batches, batches[::-1], batches[:5]):
        step = TrainingStep(8)
        for batch in order:
            step(batch)
        sums.append(step.total())
    expected = sum(int(leaf.sum()) for batch in batches for leaf in batch.values())
    assert sums[0] == sums[1] == expected & SUM_MASK
    assert sums[2] != sums[0]


def test_a_step_trains(suite):
    jax = pytest.importorskip("jax")
    from suite.training import TrainingStep

    step = TrainingStep(8)
    before = [np.asarray(weight) for weight in step.state[0]]
    step(next(batches_of(1)))
    after = [np.asarray(weight) for weight in jax.device_get(step.state[0])]
    assert all((a != b).any() for a, b in zip(before, after, strict=True))


@pytest.fixture
def served(suite, tmp_path):
    from suite.slow_server import serving

    (tmp_path / "part.bin").write_bytes(bytes(range(256)) * 1000)
    with serving(str(tmp_path), latency_ms=0, rate_mb=1e6) as url:
        yield url


def test_the_server_serves_files_and_ranges(served):
    whole = bytes(range(256)) * 1000
    assert urlopen(f"{served}/part.bin").read() == whole
    assert urlopen(f"{served}/bucket/part.bin?x=1").read() == whole  # as a client of S3 asks
    for asked, start, stop in (
        ("5-9", 5, 10),
        ("255990-", 255_990, 256_000),
        ("0-999999", 0, None),
    ):
        answer = urlopen(Request(f"{served}/part.bin", headers={"Range": f"bytes={asked}"}))
        assert answer.status == 206
        assert answer.read() == whole[start:stop]
    head = urlopen(Request(f"{served}/part.bin", method="HEAD"))
    assert head.headers["Content-Length"] == "256000"
    assert head.read() == b""
    assert (
        urlopen(f"{served}/asked").read()
        == repr({"requests": 6, "bytes": 2 * 256_000 + 5 + 10 + 256_000}).encode()
    )


def test_the_server_has_no_other_files(served):
    for path in ("nobody", "", "bucket/"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{served}/{path}")


def test_rows_of_steps(suite):
    import contenders.jax_by_hand
    import contenders.loaderx_
    from suite import report
    from suite.entry import Entry
    from suite.workloads import WORKLOADS

    limit = Entry(contenders.jax_by_hand, WORKLOADS["step"], "device-resident", "")
    ours = Entry(contenders.loaderx_, WORKLOADS["step"], "defaults", "")
    for entry, rate in ((limit, 128_000.0), (ours, 64_000.0)):
        entry.rates, entry.cpus, entry.firsts, entry.peak_mb = [rate] * 3, [1e-5] * 3, [0.1], 1.0
    rows = [limit.row(), ours.row()]
    assert [row["value"] for row in rows] == [1000.0, 500.0]
    assert rows[0]["cpu_rounds"] == pytest.approx([10.0] * 3)
    table = report.section(WORKLOADS["step"], rows)
    assert "| steps/s | CPU per record |" in table
    assert "on the device = 1" in table
    assert "| **loaderx** | defaults | 500 | 10 µs | 0.64 | 500 to 500 | 0.5 |" in table
    summary = report.summary({"rows": rows})
    assert "| JAX by hand, device-resident: 1,000 steps/s (10 µs) | 0.50× |" in summary


def test_rows_that_are_far_behind_take_few_rounds(suite):
    import contenders.loaderx_
    import contenders.numpy_by_hand
    import contenders.spdl_
    import contenders.torch_
    from suite.entry import Entry
    from suite.measuring import far_behind
    from suite.workloads import WORKLOADS

    ours, theirs = contenders.loaderx_, contenders.torch_
    rates = [(contenders.numpy_by_hand, 100.0), (ours, 90.0), (ours, 10.0)]
    rates += [(theirs, 30.0), (theirs, 25.0), (theirs, 23.0), (contenders.spdl_, 24.0)]
    entries = []
    for module, rate in rates:
        entries.append(Entry(module, WORKLOADS["mnist128"], "", "", rates=[rate, rate / 2]))
    found = [far_behind(entry, entries) for entry in entries]
    assert found == [False, False, False, False, False, True, True]
    resume = Entry(contenders.torch_, WORKLOADS["resume"], "", "", rates=[9.0])
    assert not far_behind(resume, [resume])


def test_one_pass_counts_its_start(suite, monkeypatch):
    import child
    from suite.workloads import WORKLOADS

    found = {"records": 4, "seconds": 2.0, "cpu_s": 1.0, "first_s": 0.5, "sum": 0}
    monkeypatch.setattr(child, "run", lambda *_: found)
    assert child.one_pass(None, None) == {**found, "rate": 2.0, "cpu_per_record": 0.25}
    assert WORKLOADS["remote"].cold
