"""Hugging Face datasets.  The Arrow files are written beforehand, without a clock."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.file_workloads import (
    CENTRE,
    SHORTER_SIDE,
    WINDOW,
    centre_with_opencv,
    image_folder,
    json_lines,
    parquet_files,
    tokenise,
)
from suite.packing import pack
from suite.workloads import (
    JPEG_SIZE,
    MIXED,
    Array,
    Job,
    Record,
    augment_batch,
    boxes,
    burn,
    decode,
    scale,
    stack,
)

TITLE = "Hugging Face datasets"
REQUIREMENTS = [
    "datasets",
    "fsspec[http]",
    "torch==2.13.0",
    "jax",
    "pillow",
    "numpy",
    "opencv-python-headless",
]
VERSIONS = ["datasets", "pyarrow", "torch", "jax", "numpy"]
OWN_DECODER = {"jpeg": ("defaults",), "imagefolder": ("defaults", "best")}
OWN_FILES = ("arrays", "transform", "step", "tokens", "images", "resume")
DEFAULTS = "with_format('numpy'), shuffle(), iter(n)"
BEST = "with_format('arrow'), shuffle(), iter(n), views of Arrow's memory"
STREAMING = "Parquet, load_dataset(URLs, streaming=True), shuffle(buffer)"
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": BEST},
    "transform": {
        "defaults": f"{DEFAULTS}; the function on whole batches",
        "best": f"{BEST}; the function on whole batches",
    },
    "step": {
        "defaults": "with_format('jax'), shuffle(), iter(n); arrays of JAX, into the step",
        "best": f"{BEST}; as they are into the step",
    },
    "tokens": {"defaults": DEFAULTS, "best": BEST},
    "jpeg": {
        "defaults": "the Image feature (Pillow) and with_transform; no workers",
        "best": "paths, OpenCV in with_transform; no workers",
    },
    "gil": {
        "defaults": "with_transform; no workers",
        "best": "map(num_proc=2) before every epoch",
    },
    "remote": {
        "defaults": f"{STREAMING}, iter(n)",
        "best": f"{STREAMING}, torch DataLoader(num_workers=4)",
    },
    "resume": {"defaults": "shuffle(seed), then skip(n)"},
    "images": {
        "defaults": f"{DEFAULTS}; the function on whole batches",
        "best": f"{BEST}; the function on whole batches",
    },
}
MNIST = {"image": (np.uint8, (28, 28)), "label": (np.int32, ())}
NO_OPERATIONS = "no augmentation of its own: it would run NumPy's, as in images64"
CANNOT = {
    "transport": "no worker processes of its own while iterating",
    "aug32": NO_OPERATIONS,
    "aug128": NO_OPERATIONS,
}


def begin() -> None:
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import datasets

    datasets.disable_progress_bars()


def note() -> str:
    return ""


def folder(job: Job) -> Path:
    return job.data / "hf" / job.workload


def prepare(job: Job) -> None:
    """Writes the data as Arrow, once."""
    import datasets
    from datasets import Array2D, Array3D, Features, Sequence, Value

    columns: dict[str, Any]
    if job.workload == "remote":
        write_parquet(job)
        return
    if job.workload in ("arrays", "transform", "step"):
        columns = {"image": job.load("image"), "label": job.load("label")}
        features = {"image": Array2D((28, 28), "uint8"), "label": Value("int32")}
    elif job.workload == "tokens":
        columns = {"tokens": job.load("tokens")}
        features = {"tokens": Sequence(Value("int32"), length=512)}
    elif job.workload == "images":
        columns = {"image": job.load("image64"), "label": job.load("label64")}
        features = {"image": Array3D((64, 64, 3), "uint8"), "label": Value("int32")}
    elif job.workload == "resume":
        columns = {"value": np.arange(job.records, dtype=np.int32)}
        features = {"value": Value("int32")}
    elif job.workload in FILES:
        loaded(job)
        return
    else:
        return
    made = datasets.Dataset.from_dict(columns, features=Features(features))
    made.save_to_disk(folder(job))


def opened(job: Job) -> Any:
    import datasets

    return datasets.load_from_disk(folder(job)).select(range(job.records))


def batches(job: Job, dtypes: Record, function: Any = None) -> Iterator[Record]:
    """Whole batches of columns.  The NumPy format makes int64 of all whole numbers."""
    dataset = opened(job).with_format("arrow" if job.variant == "best" else "numpy")
    for epoch in range(job.epochs):
        made = dataset.shuffle(seed=epoch, load_from_cache_file=False, keep_in_memory=True)
        for found in made.iter(job.batch_size):
            if job.variant == "best":
                batch = {name: from_arrow(found[name], *dtypes[name]) for name in dtypes}
            else:
                batch = {name: found[name].astype(dtypes[name][0]) for name in dtypes}
            yield function(batch) if function else batch


def from_arrow(column: Any, dtype: Any, shape: tuple[int, ...]) -> Array:
    """A view of Arrow's memory, where it lies in one piece."""
    found = column.combine_chunks()
    found = getattr(found, "storage", found)
    while hasattr(found, "flatten") and hasattr(found.type, "value_type"):
        found = found.flatten()
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype).reshape(-1, *shape)


def arrays(job: Job) -> Iterator[Record]:
    return batches(job, MNIST)


def transform(job: Job) -> Iterator[Record]:
    return batches(job, MNIST, scale)


def step(job: Job) -> Iterator[Record]:
    if job.variant == "best":
        yield from batches(job, MNIST)
        return
    dataset = opened(job).with_format("jax")
    for epoch in range(job.epochs):
        made = dataset.shuffle(seed=epoch, load_from_cache_file=False, keep_in_memory=True)
        for batch in made.iter(job.batch_size):  # its images are int32
            yield {name: leaf.astype(MNIST[name][0]) for name, leaf in batch.items()}


def tokens(job: Job) -> Iterator[Record]:
    return batches(job, {"tokens": (np.int32, (512,))})


def images(job: Job) -> Iterator[Record]:
    return batches(job, {**MNIST, "image": (np.uint8, (64, 64, 3))}, augment_batch)


def with_pillow(columns: Record) -> Record:
    from PIL import Image

    made = []
    for image, label in zip(columns["image"], columns["label"], strict=True):
        top, left, height, width, flipped = boxes()[label].tolist()
        part = image.convert("RGB").crop((left, top, left + width, top + height))
        part = part.resize((JPEG_SIZE, JPEG_SIZE), Image.Resampling.BILINEAR)
        if flipped:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        made.append(np.asarray(part))
    return {"image": made, "label": columns["label"]}


def with_opencv(columns: Record) -> Record:
    records = [decode(path) for path in columns["path"]]
    return {name: [record[name] for record in records] for name in records[0]}


def jpeg(job: Job) -> Iterator[Record]:
    import datasets

    if job.variant == "best":
        dataset = datasets.Dataset.from_dict({"path": job.paths()}).with_transform(with_opencv)
    else:
        columns = {"image": job.paths(), "label": list(range(job.records))}
        dataset = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
        dataset = dataset.with_transform(with_pillow)
    for epoch in range(job.epochs):
        shuffled = dataset.shuffle(seed=epoch, keep_in_memory=True)
        for batch in shuffled.iter(job.batch_size):
            labels = np.asarray(batch["label"], np.int32)
            yield {"image": np.stack(batch["image"]), "label": labels}


def burn_columns(columns: Record) -> Record:
    return stack([burn(number) for number in columns["number"]])


def gil(job: Job) -> Iterator[Record]:
    import datasets

    numbers = datasets.Dataset.from_dict({"number": list(range(job.records))})
    for epoch in range(job.epochs):
        dataset = numbers.shuffle(seed=epoch, keep_in_memory=True)
        if job.variant == "best":
            dataset = dataset.map(
                burn_columns,
                batched=True,
                num_proc=job.workers,
                remove_columns=["number"],
                load_from_cache_file=False,
            ).with_format("numpy")
            for batch in dataset.iter(job.batch_size):
                yield {"value": batch["value"], "label": batch["label"].astype(np.int32)}
        else:
            yield from dataset.with_transform(burn_columns).iter(job.batch_size)


# Files behind URLs --------------------------------------------------------------------------------


def write_parquet(job: Job) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    folder = job.data / "remote" / "parquet"
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows, labels in job.parts():
        columns = {"x": pa.array([row.tobytes() for row in rows]), "label": pa.array(labels)}
        # Random bytes: neither a dictionary nor compression would help anybody.
        options = {"compression": "none", "use_dictionary": False}
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet", **options)


def collated(records: list[Record]) -> Record:
    return {
        "x": np.stack([np.frombuffer(record["x"], np.uint8) for record in records]),
        "label": np.array([record["label"] for record in records], np.int32),
    }


def remote(job: Job) -> Iterator[Record]:
    import datasets

    datasets.config.HF_HUB_OFFLINE = False  # or it opens no URLs at all
    urls = [f"{job.url}/parquet/{name}" for name in job.part_names("parquet")]
    made = datasets.load_dataset("parquet", data_files=urls, split="train", streaming=True)
    if job.variant == "best":
        from torch.utils.data import DataLoader

        made = made.shuffle(seed=0, buffer_size=MIXED // 4)  # each worker has one
        yield from DataLoader(made, job.batch_size, num_workers=4, collate_fn=collated)
        return
    for columns in made.shuffle(seed=0, buffer_size=MIXED).iter(job.batch_size):
        data = np.stack([np.frombuffer(one, np.uint8) for one in columns["x"]])
        yield {"x": data, "label": np.array(columns["label"], np.int32)}


# Resuming -----------------------------------------------------------------------------------------


def stream(job: Job, step: int = 0) -> Iterator[Record]:
    dataset = opened(job).with_format("numpy").shuffle(seed=0, keep_in_memory=True)
    for batch in dataset.skip(step * job.batch_size).iter(job.batch_size):
        yield {"value": batch["value"].astype(np.int32)}


def save(job: Job, step: int, folder: Path) -> None:
    (folder / "state.json").write_text(json.dumps({"seed": 0, "epoch": 0, "step": step}))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    return stream(job, json.loads((folder / "state.json").read_text())["step"])


# Files --------------------------------------------------------------------------------------------

STREAMING = "load_dataset(streaming=True), shuffle(buffer_size=10_000)"
WAYS |= {
    "parquet_text": {
        "defaults": "load_dataset('parquet'), shuffle(), iter(n)",
        "best": "the same, with_format('arrow'), to_pylist",
        "streaming": f"{STREAMING}, iter(n)",
    },
    "imagefolder": {
        "defaults": "load_dataset('imagefolder'), with_transform(Pillow), shuffle(), iter(n)",
        "best": "the same, Image(decode=False) and OpenCV; no workers",
    },
    "jsonl_pack": {
        "defaults": f"{STREAMING}, map(tokenise and pack by hand, batched, 2,000), iter(n)",
        "best": "load_dataset('json'), shuffle(), map(the same, num_proc=2) in every epoch",
    },
}
CANNOT["tfds"] = "no reader of TFDS folders"
FILES = ("parquet_text", "imagefolder", "jsonl_pack")


def loaded(job: Job, streaming: bool = False) -> Any:
    """Files as its loaders read them: into Arrow files once, unless they are streamed."""
    import datasets

    if job.workload == "imagefolder":
        chosen: dict[str, Any] = {"path": "imagefolder", "data_dir": str(image_folder(job))}
    elif job.workload == "parquet_text":
        chosen = {"path": "parquet", "data_files": parquet_files(job)}
    else:
        chosen = {"path": "json", "data_files": json_lines(job)}
    cache = str(job.data / "hf" / job.workload)
    return datasets.load_dataset(**chosen, split="train", cache_dir=cache, streaming=streaming)


def parquet_text(job: Job) -> Iterator[Record]:
    dataset = loaded(job, job.variant == "streaming")
    if job.variant == "best":
        dataset = dataset.with_format("arrow")
    for epoch in range(job.epochs):
        for batch in epoch_of(dataset, epoch).iter(job.batch_size):
            if job.variant == "best":
                batch = {name: batch[name].to_pylist() for name in ("text", "label")}
            yield {"text": batch["text"], "label": np.asarray(batch["label"], np.int32)}


def epoch_of(dataset: Any, epoch: int) -> Any:
    """Shuffled anew; a stream has a buffer."""
    import datasets

    if isinstance(dataset, datasets.IterableDataset):
        return dataset.shuffle(seed=epoch, buffer_size=10_000)
    return dataset.shuffle(seed=epoch, load_from_cache_file=False, keep_in_memory=True)


def centre_with_pillow(columns: Record) -> Record:
    from PIL import Image

    made = []
    for image in columns["image"]:
        times = SHORTER_SIDE / min(image.size)
        width, height = (round(side * times) for side in image.size)
        whole = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - CENTRE) // 2, (height - CENTRE) // 2
        made.append(np.asarray(whole.crop((left, top, left + CENTRE, top + CENTRE))))
    return {"image": made, "label": columns["label"]}


def centres_with_opencv(columns: Record) -> Record:
    images = [centre_with_opencv(image["path"]) for image in columns["image"]]
    return {"image": images, "label": columns["label"]}


def imagefolder(job: Job) -> Iterator[Record]:
    import datasets

    dataset = loaded(job)
    if job.variant == "best":
        dataset = dataset.cast_column("image", datasets.Image(decode=False))
        dataset = dataset.with_transform(centres_with_opencv)
    else:
        dataset = dataset.with_transform(centre_with_pillow)
    for epoch in range(job.epochs):
        for batch in epoch_of(dataset, epoch).iter(job.batch_size):
            labels = np.asarray(batch["label"], np.int32)
            yield {"image": np.stack(batch["image"]), "label": labels}


def pack_texts(columns: Record) -> Record:
    return pack([tokenise(text) for text in columns["text"]])


def jsonl_pack(job: Job) -> Iterator[Record]:
    dataset = loaded(job, job.variant == "defaults")
    options: Record = {"batched": True, "batch_size": WINDOW, "remove_columns": ["id", "text"]}
    if job.variant == "best":
        options |= {"num_proc": job.workers, "load_from_cache_file": False}
    for epoch in range(job.epochs):
        if job.variant == "best":  # by turns: the last epoch's files are still mapped
            options["cache_file_name"] = f"{tempfile.gettempdir()}/packed-{epoch % 2}.arrow"
        packed = epoch_of(dataset, epoch).map(pack_texts, **options).with_format("numpy")
        for batch in packed.iter(job.batch_size):
            yield {name: np.asarray(array, np.int32) for name, array in batch.items()}
