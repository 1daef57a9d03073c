"""JPEG files in class folders to shuffled batches of random resized crops of 224 x 224.

Every contender works in one process and draws its own crops, with the same distribution.  The peers
decode whole images, but for tf.data, which decodes the part that it needs.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

NEEDS = [
    "pillow", "simplejpeg", "grain", "datasets", "torch", "torchvision", "tensorflow-cpu",
    "opencv-python-headless", "scikit-learn", "spdl",
]  # fmt: skip
BATCH, SIZE = 64, 224
CLASSES = 16

Draw = Callable[[np.random.Generator, int, int], tuple[int, int, int, int]]


# Files ------------------------------------------------------------------------------------------


def write(folder: Path, count: int, height: int, width: int, spread: float, quality: int) -> None:
    """Windows of real photographs; sides differ by up to ``spread`` of them."""
    from PIL import Image

    rng = np.random.default_rng(0)
    walls = [wall(name) for name in ("china.jpg", "flower.jpg")]
    for number in range(count):
        pixels = walls[number % 2]
        sides = (np.array([height, width]) * rng.uniform(1 - spread, 1 + spread, 2)).astype(int)
        top, left = (int(rng.integers(0, pixels.shape[axis] - sides[axis])) for axis in (0, 1))
        path = folder / "images" / f"class{number % CLASSES:02}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        window = pixels[top : top + sides[0], left : left + sides[1]]
        Image.fromarray(window).save(path, quality=quality)


def wall(name: str) -> np.ndarray:
    """A photograph of scikit-learn's, 640 x 427, four times in each direction, mirrored."""
    from PIL import Image

    (package,) = importlib.util.find_spec("sklearn").submodule_search_locations
    pixels = np.asarray(Image.open(Path(package) / "datasets" / "images" / name))
    pair = np.concatenate([pixels, pixels[::-1]])
    four = np.concatenate([pair, pair[:, ::-1]], 1)
    return np.tile(four, (2, 2, 1))


def files(folder: Path) -> list[tuple[str, int]]:
    names = sorted(os.listdir(folder / "images"))
    return [
        (str(path), label)
        for label, name in enumerate(names)
        for path in sorted((folder / "images" / name).iterdir())
    ]


# loaderx ----------------------------------------------------------------------------------------


def loaderx(decode: bool, method: str) -> Callable[[Path], Iterator[int]]:
    def run(folder: Path) -> Iterator[int]:
        import loaderx as lx

        dataset = lx.Dataset.open(folder / "images", decode=decode).shuffle(0).repeat()
        crop = lx.image.random_resized_crop(SIZE, method=method)
        crops = dataset.random_map(crop).batch(BATCH)
        with lx.DataLoader(crops, engine="inline") as loader:
            for batch in loader:
                yield len(batch["image"])

    return run


# Peers ------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """top, left, height, width: what a user writes after torchvision's."""
    for _ in range(10):
        area = rng.uniform(0.08, 1.0) * height * width
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        tall, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if tall <= height and wide <= width:
            top, left = rng.integers(0, height - tall + 1), rng.integers(0, width - wide + 1)
            return int(top), int(left), tall, wide
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def crop_with_pillow(path: str, rng: np.random.Generator) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        top, left, tall, wide = draw(rng, image.height, image.width)
        rgb = image.convert("RGB")
        box = (left, top, left + wide, top + tall)
        return np.asarray(rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box))


def crop_with_opencv(path: str, rng: np.random.Generator) -> np.ndarray:
    import cv2

    image = cv2.imread(path, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    top, left, tall, wide = draw(rng, *image.shape[:2])
    part = image[top : top + tall, left : left + wide]
    return cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_AREA)


def by_hand(crop: Callable[[str, np.random.Generator], np.ndarray]) -> Callable:
    def run(folder: Path) -> Iterator[int]:
        paths = files(folder)
        rng = np.random.default_rng(0)
        while True:
            order = rng.permutation(len(paths))
            for start in range(0, len(order) - BATCH + 1, BATCH):
                chosen = [paths[index] for index in order[start : start + BATCH].tolist()]
                images = np.stack([crop(path, rng) for path, _ in chosen])
                labels = np.array([label for _, label in chosen])
                yield len(images) if len(labels) else 0

    return run


def torch(folder: Path) -> Iterator[int]:
    import torch
    from torchvision.io import ImageReadMode, decode_image, read_file
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    crop = v2.RandomResizedCrop(SIZE, antialias=True)
    paths = files(folder)

    class Crops(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> tuple:
            path, label = paths[index]
            return crop(decode_image(read_file(path), ImageReadMode.RGB)), label

    while True:
        loader = torch.utils.data.DataLoader(Crops(), BATCH, shuffle=True, drop_last=True)
        for images, _ in loader:
            yield len(images.numpy())


def tf_data(folder: Path) -> Iterator[int]:
    import tensorflow as tf

    everything = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def load(path: tf.Tensor, label: tf.Tensor) -> tuple:
        data = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data),
            everything,
            area_range=(0.08, 1.0),
            aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10,
        )
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.resize(image, (SIZE, SIZE), antialias=True)
        return tf.cast(image, tf.uint8), label

    paths, labels = zip(*files(folder), strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
    dataset = dataset.shuffle(len(paths)).repeat().map(load, num_parallel_calls=2)
    for images, _ in dataset.batch(BATCH, drop_remainder=True).as_numpy_iterator():
        yield len(images)


def grain(folder: Path) -> Iterator[int]:
    import cv2
    import grain

    cv2.setNumThreads(1)

    def load(record: tuple[str, int], rng: np.random.Generator) -> dict:
        return {"image": crop_with_opencv(record[0], rng), "label": record[1]}

    dataset = grain.MapDataset.source(files(folder)).seed(0).shuffle().repeat()
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=BATCH)
    for batch in dataset.random_map(load).batch(BATCH).to_iter_dataset(options):
        yield len(batch["image"])


def spdl(folder: Path) -> Iterator[int]:
    import cv2
    from spdl.pipeline import PipelineBuilder

    cv2.setNumThreads(1)
    paths, rng = files(folder), np.random.default_rng(0)

    def batches() -> Iterator[list[str]]:
        while True:
            order = rng.permutation(len(paths)).tolist()
            for start in range(0, len(order) - BATCH + 1, BATCH):
                yield [paths[index][0] for index in order[start : start + BATCH]]

    def load(chosen: list[str]) -> np.ndarray:
        own = np.random.default_rng()
        return np.stack([crop_with_opencv(path, own) for path in chosen])

    builder = PipelineBuilder().add_source(batches()).pipe(load, concurrency=2).add_sink(3)
    pipeline = builder.build(num_threads=2)
    with pipeline.auto_stop():
        for images in pipeline.get_iterator():
            yield len(images)


def hugging_face(folder: Path) -> Iterator[int]:
    import datasets
    from PIL import Image

    datasets.disable_progress_bars()
    rng = np.random.default_rng(0)

    def load(batch: dict) -> dict:
        made = []
        for image in batch["image"]:
            top, left, tall, wide = draw(rng, image.height, image.width)
            box = (left, top, left + wide, top + tall)
            rgb = image.convert("RGB")
            made.append(np.asarray(rgb.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)))
        return {"image": made, "label": batch["label"]}

    dataset = datasets.load_dataset(
        "imagefolder", data_dir=str(folder / "images"), cache_dir=str(folder / "hf"), split="train"
    ).with_transform(load)
    for epoch in range(1_000):
        for batch in dataset.shuffle(seed=epoch).iter(BATCH, drop_last_batch=True):
            yield len(np.stack(batch["image"]))


CONTENDERS = {
    "loaderx": loaderx(decode=False, method="area"),
    "loaderx, Pillow": loaderx(decode=False, method="bilinear"),
    "loaderx, full decode": loaderx(decode=True, method="area"),
    "loaderx, full decode, Pillow": loaderx(decode=True, method="bilinear"),
    "Pillow by hand": by_hand(crop_with_pillow),
    "OpenCV by hand": by_hand(crop_with_opencv),
    "torch + torchvision": torch,
    "tf.data": tf_data,
    "Grain + OpenCV": grain,
    "SPDL + OpenCV": spdl,
    "Hugging Face": hugging_face,
}
PARTIAL = "tf.data"  # decodes only the part that it needs
PEERS = tuple(name for name in CONTENDERS if not name.startswith(("loaderx", PARTIAL)))
