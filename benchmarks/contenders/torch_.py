"""torch DataLoader.  Batches are tensors, seen as NumPy arrays without a copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from suite.augmented import BRIGHTNESS, CONTRAST, CROPS, NOISE
from suite.workloads import (
    BLOCKS,
    Array,
    Job,
    Record,
    augment,
    augment_batch,
    burn,
    decode,
    scale,
)

from contenders.torch_batches import Orders, as_it_is, in_numpy, own_threads
from contenders.torch_files import (
    FILE_WAYS,
    OWN_DECODER,
    imagefolder,
    jsonl_pack,
    parquet_text,
    prepare,
    tfds,
)

__all__ = ["OWN_DECODER", "imagefolder", "jsonl_pack", "parquet_text", "prepare", "tfds"]

TITLE = "torch DataLoader"
REQUIREMENTS = [
    "torch==2.13.0",
    "torchdata",
    "torchvision==0.28.0",
    "jax",
    "numpy",
    "opencv-python-headless",
    "pyarrow",
    "tensorflow-datasets",
    "importlib-resources",
    "array_record",
]
VERSIONS = ["torch", "torchdata", "torchvision", "jax", "numpy"]
DEFAULTS = "__getitem__, default collate, no workers"
WHOLE = "batch_sampler of arrays of indices, __getitems__ makes the whole batch, no workers"
AUGMENTED = {
    "defaults": "torchvision.transforms.v2 for each record, default collate, no workers",
    "best": f"{WHOLE}; tensor operations on the batch, torch's own threads",
    "workers": "the same, num_workers=2, persistent_workers",
}
WAYS = {
    "arrays": {"defaults": DEFAULTS, "best": WHOLE},
    "transform": {"defaults": DEFAULTS, "best": WHOLE},
    "step": {
        "defaults": f"{DEFAULTS}; tensors as NumPy arrays, as they are into the step",
        "best": f"{WHOLE}; the same",
    },
    "tokens": {"defaults": DEFAULTS, "best": WHOLE},
    "jpeg": {"defaults": DEFAULTS, "best": "num_workers=2, persistent_workers, prefetch_factor=2"},
    "gil": {
        "defaults": "num_workers=2",
        "best": "num_workers=2, persistent_workers, prefetch_factor=4",
    },
    "transport": {
        "defaults": "num_workers=1, NumPy records, default collate",
        "best": "num_workers=1, persistent_workers, tensors, default collate into shared memory",
    },
    "resume": {
        "defaults": "no state: read and throw away up to the position",
        "best": "torchdata StatefulDataLoader",
    },
    "images": {
        "defaults": DEFAULTS,
        "best": WHOLE,
        "workers": "the same, num_workers=2, persistent_workers",
    },
    "aug32": AUGMENTED,
    "aug128": AUGMENTED,
    **FILE_WAYS,
}
CANNOT = {
    "remote": "reads no URLs by itself; WebDataset and Hugging Face datasets use its DataLoader"
}


def begin() -> None:
    own_threads()


def note() -> str:
    return ""


class Rows:
    """A map-style dataset: records one at a time."""

    def __init__(self, arrays: dict[str, Array], function: Any = None) -> None:
        self.arrays, self.function = arrays, function

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: int) -> Any:
        record = {name: array[index] for name, array in self.arrays.items()}
        return self.function(record) if self.function else record


class Batches(Rows):
    """The same, with a whole batch at once."""

    def __getitems__(self, indices: Any) -> Any:
        import torch

        ix = np.asarray(indices)
        batch = {name: array[ix] for name, array in self.arrays.items()}
        made = self.function(batch) if self.function else batch
        return {name: torch.from_numpy(array) for name, array in made.items()}


class Files:
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return decode(self.paths[index])


class Numbers:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return burn(index)


class Blocks:
    def __init__(self, blocks: Array, count: int) -> None:
        self.blocks, self.count = blocks, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return {"x": self.blocks[index % BLOCKS]}


class Tensors(Blocks):
    """In a worker, the default collate stacks tensors in shared memory: one copy, not two."""

    def __init__(self, blocks: Array, count: int) -> None:
        import torch

        super().__init__(blocks, count)
        self.tensor = torch.from_numpy(blocks)

    def __getitem__(self, index: int) -> Any:
        return {"x": self.tensor[index % BLOCKS]}


def run(job: Job, dataset: Any, shuffle: bool = True, **options: Any) -> Iterator[Record]:
    import torch
    from torch.utils.data import DataLoader

    # Otherwise as in each worker: the arrays are small.
    own = job.variant == "defaults" or (job.workload in CROPS and job.variant == "best")
    torch.set_num_threads(own_threads() if own else 1)
    if hasattr(dataset, "__getitems__"):
        options["batch_sampler"] = Orders(job.records, job.batch_size)
        options["collate_fn"] = as_it_is
    else:
        options |= {"batch_size": job.batch_size, "shuffle": shuffle}
    loader = DataLoader(dataset, **options)
    for _ in range(job.epochs):
        yield from in_numpy(loader)


def arrays(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image"), "label": job.load("label")}
    return run(job, Batches(data) if job.variant == "best" else Rows(data))


step = arrays


def transform(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image"), "label": job.load("label")}
    return run(job, Batches(data, scale) if job.variant == "best" else Rows(data, scale))


class Tokens(Rows):
    """A row of a read-only memory map has to be copied before it becomes a tensor."""

    def __getitem__(self, index: int) -> Any:
        return {"tokens": np.array(self.arrays["tokens"][index])}


def tokens(job: Job) -> Iterator[Record]:
    data = {"tokens": job.open("tokens")}
    return run(job, Batches(data) if job.variant == "best" else Tokens(data))


def jpeg(job: Job) -> Iterator[Record]:
    options = {"num_workers": job.workers, "persistent_workers": True, "prefetch_factor": 2}
    return run(job, Files(job.paths()), **(options if job.variant == "best" else {}))


def gil(job: Job) -> Iterator[Record]:
    options: dict[str, Any] = {"num_workers": job.workers}
    if job.variant == "best":
        options |= {"persistent_workers": True, "prefetch_factor": 4}
    return run(job, Numbers(job.records), **options)


def transport(job: Job) -> Iterator[Record]:
    blocks = job.load("blocks")
    if job.variant == "best":
        dataset = Tensors(blocks, job.records)
        return run(job, dataset, shuffle=False, num_workers=1, persistent_workers=True)
    return run(job, Blocks(blocks, job.records), shuffle=False, num_workers=1)


def images(job: Job) -> Iterator[Record]:
    data = {"image": job.load("image64"), "label": job.load("label64")}
    if job.variant == "workers":
        options = {"num_workers": job.workers, "persistent_workers": True}
        return run(job, Batches(data, augment_batch), **options)
    return run(job, Batches(data, augment_batch) if job.variant == "best" else Rows(data, augment))


class AugmentedBatches(Rows):
    """Operations on whole batches of tensors."""

    def __init__(self, image: Array, label: Array, workload: str) -> None:
        import torch

        super().__init__({"image": image, "label": label})
        self.images, self.labels = torch.from_numpy(image), torch.from_numpy(label)
        self.side, self.crop = CROPS[workload]

    def __getitems__(self, indices: Any) -> Any:
        import torch

        ix = torch.as_tensor(indices)
        lines, columns = self.places(len(ix))
        cut = self.images[ix[:, None, None], lines[:, :, None], columns[:, None, :]]
        pixels = cut.to(torch.float32).mul_(1 / 255)
        mean = pixels.mean(dim=(1, 2), keepdim=True)
        shape = (len(ix), 1, 1, 1)
        factor = torch.empty(shape).uniform_(1 - CONTRAST, 1 + CONTRAST)
        shift = torch.empty(shape).uniform_(-BRIGHTNESS, BRIGHTNESS)
        pixels.mul_(factor).add_(mean * (1 - factor) + shift)
        pixels.add_(torch.randn(pixels.shape), alpha=NOISE).clamp_(0, 1)
        return {"image": pixels, "label": self.labels[ix]}

    def places(self, count: int) -> tuple[Any, Any]:
        """The lines and columns of every record's crop; backwards where it is flipped."""
        import torch

        top, left = torch.randint(self.side - self.crop + 1, (2, count, 1))
        span = torch.arange(self.crop)
        flipped = torch.rand(count, 1) < 0.5
        return top + span, left + torch.where(flipped, self.crop - 1 - span, span)


class AugmentedRecords(Rows):
    """torchvision's transforms for one record."""

    def __init__(self, image: Array, label: Array, workload: str) -> None:
        from torchvision.transforms import v2

        super().__init__({"image": image, "label": label})
        import torch

        self.transforms = v2.Compose(
            [
                v2.RandomCrop(CROPS[workload][1]),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                adjusted,  # ColorJitter multiplies for brightness, where the others add
                v2.GaussianNoise(sigma=NOISE),
            ]
        )

    def __getitem__(self, index: int) -> Any:
        import torch

        image = torch.from_numpy(self.arrays["image"][index]).permute(2, 0, 1)
        made = self.transforms(image).permute(1, 2, 0)
        return {"image": made, "label": self.arrays["label"][index]}


def adjusted(pixels: Any) -> Any:
    """Brightness and contrast of one image, channels first."""
    import torch

    factor, shift = (2 * torch.rand(2) - 1).tolist()
    mean = pixels.mean(dim=(1, 2), keepdim=True)
    return (pixels - mean) * (1 + CONTRAST * factor) + (mean + BRIGHTNESS * shift)


def aug32(job: Job) -> Iterator[Record]:
    data = job.load(job.workload), job.load(f"label_{job.workload}"), job.workload
    if job.variant == "defaults":
        return run(job, AugmentedRecords(*data))
    options = {"num_workers": job.workers, "persistent_workers": True}
    return run(job, AugmentedBatches(*data), **(options if job.variant == "workers" else {}))


aug128 = aug32


# Resuming -----------------------------------------------------------------------------------------


def loader(job: Job) -> Any:
    import torch

    torch.set_num_threads(own_threads() if job.variant == "defaults" else 1)
    dataset = Batches({"value": job.load("value")})
    options: dict[str, Any] = {
        "batch_size": job.batch_size,
        "shuffle": True,
        "collate_fn": as_it_is,
        "generator": torch.Generator().manual_seed(0),
    }
    if job.variant == "best":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, **options)
    return torch.utils.data.DataLoader(dataset, **options)


def stream(job: Job) -> Iterator[Record]:
    return in_numpy(loader(job))


def save(job: Job, step: int, folder: Path) -> None:
    import torch

    if job.variant == "best":
        made = loader(job)
        batches = iter(made)
        for _ in range(step):
            next(batches)
        torch.save(made.state_dict(), folder / "state.pt")
    else:
        (folder / "state.json").write_text(json.dumps({"seed": 0, "step": step}))


def restore(job: Job, step: int, folder: Path) -> Iterator[Record]:
    import torch

    made = loader(job)
    if job.variant == "best":
        made.load_state_dict(torch.load(folder / "state.pt", weights_only=False))
        return in_numpy(made)
    batches = iter(made)
    for _ in range(step):
        next(batches)
    return in_numpy(batches)
