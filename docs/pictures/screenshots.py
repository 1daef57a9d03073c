"""Takes the pictures of `loaderx view` with a real browser: Chromium, over chromedriver.

    python docs/pictures/screenshots.py [FOLDER]

Nothing but loaderx and Pillow is needed beside the browser.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from browser import browser  # noqa: E402
from loaderx import DataLoader, Dataset  # noqa: E402
from loaderx.demo import DIGITS  # noqa: E402
from loaderx.viewer.site import Site, site_of  # noqa: E402
from viewing import files, served  # noqa: E402

COLOURS = 256  # of a picture: small files


def digits() -> Site:
    def scale(record):
        return {**record, "image": (record["image"] / 16).astype(np.float32)}

    def noise(record, rng):
        image = record["image"] + rng.normal(0, 0.12, (8, 8))
        return {**record, "image": np.clip(image, 0, 1).astype(np.float32)}

    train = Dataset.open(DIGITS).shuffle(seed=0).map(scale).random_map(noise).batch(32)
    return site_of("train:make_dataset", DataLoader(train, engine="inline"))


def documents() -> Site:
    draw = np.random.default_rng(0)
    web = [{"tokens": draw.integers(1, 50_000, n)} for n in draw.integers(5, 60, 900)]
    code = [{"tokens": draw.integers(1, 50_000, n)} for n in draw.integers(5, 40, 300)]
    mixed = Dataset.mix(
        {"web": Dataset.from_source(web), "code": Dataset.from_source(code)}, [3, 1], stop="repeat"
    )
    packed = mixed.shuffle(seed=0).pack({"tokens": 96}, window=200).batch(8)
    return site_of("train:pretraining", DataLoader(packed, engine="inline"))


def photos(folder: Path) -> Site:
    """Stripes, waves and rings: a folder of images for each class, and a damaged one."""
    draw = np.random.default_rng(1)
    y, x = np.mgrid[-1:1:96j, -1:1:128j]
    for number in range(60):
        kind = ("rings", "stripes", "waves")[int(draw.choice(3, p=[0.5, 0.2, 0.3]))]
        size, turn = draw.uniform(4, 14), draw.uniform(0, 3)
        along = x * np.cos(turn) + y * np.sin(turn)
        level = {
            "rings": np.sin(size * np.hypot(x, y) * 2),
            "stripes": np.sign(np.sin(size * along)),
            "waves": np.sin(size * along + 2 * np.sin(3 * y)),
        }[kind]
        dark, light = draw.integers(20, 120, 3), draw.integers(130, 250, 3)
        image = dark + (level[..., None] + 1) / 2 * (light - dark)
        place = folder / kind
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(place / f"{number}.png")
    (folder / "rings" / "damaged.png").write_bytes(b"no image")
    return files(folder)


def take(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary, browser() as window:
        images = photos(Path(temporary) / "photos")
        images.title = "photos"
        images.in_words = lambda text: text.replace(temporary + "/", "")
        for name, site, place, scheme, height in (
            ("step", digits(), "?step=12", "light", 760),
            ("stages", digits(), "stages?step=12&record=3", "dark", 820),
            ("packed", documents(), "?step=20", "light", 680),
            ("records", images, "records?record=24", "light", 560),
            ("columns", images, "columns", "light", 420),
        ):
            with served(site) as server:
                window.look(width=1200, height=height, scheme=scheme)
                window.open(server.url + place)
                picture = Image.open(io.BytesIO(window.screenshot())).convert("RGB")
            small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("viewer")
    target.mkdir(exist_ok=True)
    take(target)
