"""torch DataLoader on files; a part of `contenders.torch_`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from suite.file_workloads import (
    CENTRE,
    SHORTER_SIDE,
    WINDOW,
    central_square,
    image_folder,
    json_lines,
    read_parquet,
    take_rows,
    tfds_source,
    write_array_record,
)
from suite.packing import cut, pack_lines
from suite.workloads import Job, Record

from contenders.torch_batches import Orders, as_it_is, in_numpy, own_threads

WORKERS = "num_workers=2, persistent_workers"
FILE_WAYS = {
    "parquet_text": {
        "defaults": "read_table of pyarrow's; __getitem__, default collate, no workers",
        "best": "the same, batch_sampler of arrays of indices, __getitems__ is table.take",
    },
    "imagefolder": {
        "defaults": "torchvision's ImageFolder (Pillow), Resize, CenterCrop, no workers",
        "best": f"ImageFolder with decode_image of torchvision's, resized_crop, {WORKERS}",
    },
    "tfds": {
        "defaults": "DataLoader(tfds.data_source), ArrayRecord files, no workers",
        "best": f"the same, {WORKERS}",
    },
    "jsonl_pack": {
        "defaults": "an IterableDataset that packs 2,000 documents by hand, no workers",
        "best": f"the same, {WORKERS}",
    },
}
OWN_DECODER = {"imagefolder": ("defaults", "best")}


def prepare(job: Job) -> None:
    if job.workload == "tfds":
        write_array_record(job)


def in_workers(job: Job) -> dict[str, Any]:
    if job.variant == "defaults":
        return {}
    return {"num_workers": job.workers, "persistent_workers": True}


def run(job: Job, dataset: Any, **options: Any) -> Iterator[Any]:
    import torch

    torch.set_num_threads(own_threads() if job.variant == "defaults" else 1)
    loader = torch.utils.data.DataLoader(dataset, **options)
    for _ in range(job.epochs):
        yield from in_numpy(loader)


class Table:
    """Rows of a table of pyarrow's."""

    def __init__(self, table: Any) -> None:
        self.table, self.text, self.label = table, table["text"], table["label"].to_numpy()

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return {"text": self.text[index].as_py(), "label": self.label[index]}


class TakenTable(Table):
    def __getitems__(self, indices: Any) -> Any:
        import torch

        batch = take_rows(self.table, np.asarray(indices))
        return {**batch, "label": torch.tensor(batch["label"])}


def parquet_text(job: Job) -> Iterator[Record]:
    table = read_parquet(job)
    if job.variant == "best":
        order = Orders(job.records, job.batch_size)
        return run(job, TakenTable(table), batch_sampler=order, collate_fn=as_it_is)
    return run(job, Table(table), batch_size=job.batch_size, shuffle=True)


def decoded(path: str) -> Any:
    from torchvision.io import ImageReadMode, decode_image, read_file

    return decode_image(read_file(path), ImageReadMode.RGB)


def centre(image: Any) -> Any:
    """Lines, columns, channels: the collate then copies into that order."""
    from torchvision.transforms.v2 import functional

    top, left, side = central_square(*image.shape[1:])
    made = functional.resized_crop(image, top, left, side, side, [CENTRE, CENTRE])
    return made.permute(1, 2, 0)


def labelled(images_and_labels: Any) -> Any:
    from torch.utils.data import default_collate

    image, label = default_collate(images_and_labels)
    return {"image": image, "label": label}


def imagefolder(job: Job) -> Iterator[Record]:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    if job.variant == "best":
        dataset = ImageFolder(image_folder(job), transform=centre, loader=decoded)
    else:
        steps = v2.Compose([v2.Resize(SHORTER_SIDE), v2.CenterCrop(CENTRE), np.array])
        dataset = ImageFolder(image_folder(job), transform=steps)
    options = {"batch_size": job.batch_size, "shuffle": True, **in_workers(job)}
    return run(job, dataset, collate_fn=labelled, **options)


def tfds(job: Job) -> Iterator[Record]:
    options = {"batch_size": job.batch_size, "shuffle": True, **in_workers(job)}
    return run(job, tfds_source(job), **options)


@cache
def packed_documents() -> Any:
    """A class that derives from one of torch's, which is imported late."""
    from torch.utils.data import IterableDataset, get_worker_info

    class PackedDocuments(IterableDataset):  # type: ignore[misc]
        """Each worker packs its share of the documents, in an order of its own."""

        def __init__(self, path: str, records: int, batch_size: int) -> None:
            self.path, self.records, self.batch_size = path, records, batch_size

        def __iter__(self) -> Iterator[Record]:
            import torch

            info = get_worker_info()
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            share = np.arange(worker, self.records, workers)
            order = share[torch.randperm(len(share)).numpy()]
            windows = [order[start : start + WINDOW] for start in range(0, len(order), WINDOW)]
            yield from cut((pack_lines(self.path, ix) for ix in windows), self.batch_size)

    return PackedDocuments


def jsonl_pack(job: Job) -> Iterator[Record]:
    dataset = packed_documents()(json_lines(job), job.records, job.batch_size)
    return run(job, dataset, batch_size=None, **in_workers(job))
