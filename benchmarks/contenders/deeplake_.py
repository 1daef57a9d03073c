"""Deep Lake 4: its own files, read through torch's DataLoader or in batches of a shuffled view."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.workloads import (
    JPEG_SIZE,
    Array,
    Job,
    Record,
    augment_batch,
    boxes,
    scale,
    single_threaded_opencv,
    stack,
)

TITLE = "Deep Lake"
REQUIREMENTS = ["deeplake", "torch==2.13.0", "jax", "numpy", "opencv-python-headless"]
VERSIONS = ["deeplake", "torch", "jax", "numpy"]
DEFAULTS = "torch DataLoader(ds.pytorch(), shuffle=True)"
BEST = "ds.query('... ORDER BY RANDOM()').batches(n)"
BOTH = {"defaults": DEFAULTS, "best": BEST}
WAYS = {
    "arrays": BOTH,
    "transform": {
        "defaults": "torch DataLoader(ds.pytorch(transform=f), shuffle=True)",
        "best": f"{BEST}; the function on whole batches",
    },
    "step": {
        "defaults": f"{DEFAULTS}; tensors as NumPy arrays, as they are into the step",
        "best": f"{BEST}; as they are into the step",
    },
    "tokens": BOTH,
    "jpeg": {
        "defaults": "types.Image, decoded by it; torch DataLoader(ds.pytorch(transform=crop)), "
        "num_workers=2",
        "best": f"types.Bytes, {BEST}; OpenCV; no workers",
    },
    "images": {"best": f"{BEST}; the function on whole batches"},
}
OWN_FILES = ("arrays", "transform", "step", "tokens", "images")
OWN_OPERATIONS = "no operations of its own: it would run those of NumPy or torch"
OTHERS = "its data are in files of its own, which it writes"
CANNOT = {
    "gil": "no workers of its own; torch's DataLoader has them",
    "transport": "no workers of its own; torch's DataLoader has them",
    "resume": "no state of an iteration",
    "remote": "opens s3://, gs://, azure:// and its own cloud, not plain HTTP",
    "aug32": OWN_OPERATIONS,
    "aug128": OWN_OPERATIONS,
    "parquet_text": OTHERS,
    "imagefolder": OTHERS,
    "tfds": OTHERS,
    "jsonl_pack": "no packing",
}
NAMES = {"image64": "image", "label64": "label"}


def begin() -> None:
    import deeplake  # noqa: F401


def note() -> str:
    return ""


def location(job: Job, form: str = "") -> str:
    kind = "arrays" if job.workload in ("transform", "step") else job.workload
    return str(job.data / "deeplake" / f"{kind}{form}")


# Writing ------------------------------------------------------------------------------------------


def prepare(job: Job) -> None:
    """Writes the data as Deep Lake has them, once."""
    from deeplake import types

    if job.workload == "jpeg":
        files = [Path(path).read_bytes() for path in job.paths()]
        image = types.Image(dtype="uint8", sample_compression="jpeg")
        write(job, "-image", {"image": (image, files)})
        write(job, "-bytes", {"image": (types.Bytes(), files)})
    elif job.workload == "tokens":
        write(job, "", {"tokens": as_column(np.load(job.data / "tokens.npy", mmap_mode="r"))})
    elif job.workload in OWN_FILES:
        names = ("image64",) if job.workload == "images" else ("image",)
        write(job, "", {NAMES.get(name, name): as_column(job.load(name)) for name in names})


def as_column(array: Array) -> tuple[Any, Any]:
    from deeplake import types

    return types.Array(str(array.dtype), shape=list(array.shape[1:])), array


def write(job: Job, form: str, columns: dict[str, tuple[Any, Any]]) -> None:
    """Columns with their types; ``label`` is the number of the record."""
    import deeplake
    from deeplake import types

    shutil.rmtree(location(job, form), ignore_errors=True)
    dataset = deeplake.create(f"file://{location(job, form)}")
    for name, (kind, _) in columns.items():
        dataset.add_column(name, kind)
    dataset.add_column("label", types.Int32())
    records = len(next(iter(columns.values()))[1])
    for start in range(0, records, 4096):
        part = {name: data[start : start + 4096] for name, (_, data) in columns.items()}
        numbers = np.arange(start, min(start + 4096, records), dtype=np.int32)
        dataset.append({**part, "label": numbers})
    dataset.commit()


# Reading ------------------------------------------------------------------------------------------


def view(job: Job, form: str = "", *, shuffled: bool = True) -> Any:
    """The first records, in a new random order each time."""
    import deeplake

    dataset = deeplake.open_read_only(f"file://{location(job, form)}")
    order = "ORDER BY RANDOM()" if shuffled else ""
    return dataset.query(f"SELECT * WHERE label < {job.records} {order}")


def batches(job: Job, function: Any = None, form: str = "") -> Iterator[Record]:
    for _ in range(job.epochs):
        for batch in view(job, form).batches(job.batch_size):
            yield function(batch) if function else batch


def with_torch(job: Job, transform: Any = None, form: str = "", workers: int = 0) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    dataset = view(job, form, shuffled=False).pytorch(transform)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(dataset, batch_size=job.batch_size, shuffle=True, **options)
    for _ in range(job.epochs):
        for batch in loader:
            yield {name: tensor.numpy() for name, tensor in batch.items()}


def arrays(job: Job) -> Iterator[Record]:
    return batches(job) if job.variant == "best" else with_torch(job)


step = arrays


def transform(job: Job) -> Iterator[Record]:
    return batches(job, scale) if job.variant == "best" else with_torch(job, scale)


def tokens(job: Job) -> Iterator[Record]:
    found = batches(job) if job.variant == "best" else with_torch(job)
    return ({"tokens": batch["tokens"]} for batch in found)


def images(job: Job) -> Iterator[Record]:
    return batches(job, augment_batch)


def crop(image: Any, label: Any) -> Record:
    cv2 = single_threaded_opencv()
    top, left, height, width, flipped = boxes()[label].tolist()
    part = np.asarray(image)[top : top + height, left : left + width]
    part = cv2.resize(part, (JPEG_SIZE, JPEG_SIZE), interpolation=cv2.INTER_LINEAR)
    return {"image": cv2.flip(part, 1) if flipped else part, "label": np.int32(label)}


def crop_record(record: Any) -> Record:
    return crop(record["image"], record["label"])


def decode_columns(columns: Record) -> Record:
    cv2 = single_threaded_opencv()
    made = []
    for coded, label in zip(columns["image"], columns["label"], strict=True):
        image = cv2.imdecode(np.frombuffer(coded, np.uint8), cv2.IMREAD_COLOR_RGB)
        made.append(crop(image, label))
    return stack(made)


def jpeg(job: Job) -> Iterator[Record]:
    if job.variant == "best":
        return batches(job, decode_columns, "-bytes")
    return with_torch(job, crop_record, "-image", job.workers)
