"""The argument `decode` of `Dataset.open`."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loaderx import ArgumentError, ArgumentTypeError, DataLoader, Dataset, StateError

Image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")

FILES = Path(__file__).parents[1] / "files"
DEEP = np.arange(0, 65536, 3001, np.uint16)[:20].reshape(4, 5)
INDICES = np.arange(20, dtype=np.uint8).reshape(4, 5) % 3
COLOURS = np.array([[200, 0, 0], [0, 99, 0], [0, 0, 255]], np.uint8)


def png(array, palette=None):
    image = Image.fromarray(array, "P") if palette is not None else Image.fromarray(array)
    if palette is not None:
        image.putpalette(palette.ravel().tolist())
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def turned(kind="JPEG"):
    """A bright left half that is shown above a dark one, since EXIF turns it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.zeros((16, 32), np.uint8)
    pixels[:, :16] = 255
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, exif=exif)
    return out.getvalue()


PALETTE, GRAY16 = png(INDICES, COLOURS), png(DEEP)


# Every format with images -----------------------------------------------------------------------


def table(feature, column):
    described = json.dumps({"info": {"features": {"image": feature}}})
    made = pa.table({"image": pa.array([column])})
    return made.replace_schema_metadata({"huggingface": described})


def in_folder(path, data):
    (path / "class").mkdir(parents=True)
    (path / "class/0.png").write_bytes(data)


def in_tar(path, data):
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("0.image.png")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


def in_parquet(path, data):
    pq.write_table(table({"_type": "Image"}, {"bytes": data, "path": None}), path)


def in_arrow(path, data):
    made = table({"_type": "Image"}, {"bytes": data, "path": None})
    with pa.ipc.new_file(path, made.schema) as writer:
        writer.write_table(made)


def in_struct(path, data):
    column = {"inner": {"bytes": data, "path": None}}
    pq.write_table(table({"inner": {"_type": "Image"}}, column), path)


def in_list(path, data):
    feature = {"_type": "List", "feature": {"_type": "Image"}}
    pq.write_table(table(feature, [{"bytes": data, "path": None}]), path)


LEAVES = {in_tar: "image.png", in_struct: "image.inner"}
WRITERS = [in_folder, in_tar, in_parquet, in_arrow, in_struct, in_list]


def opened(writer, path, data, way, **options):
    """The image, opened with this way for all leaves, and for its own."""
    writer(path, data)
    for decode in (way, {LEAVES.get(writer, "image"): way}):
        record = Dataset.open(path, decode=decode, **options)[0]
        found = record[LEAVES.get(writer, "image")] if writer is in_tar else record["image"]
        found = found["inner"] if writer is in_struct else found
        yield found[0] if writer is in_list else found


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.__name__)
def test_every_format_decodes_in_every_way(writer, tmp_path):
    for found in opened(writer, tmp_path / "a", PALETTE, True):
        np.testing.assert_array_equal(found, COLOURS[INDICES])
    for found in opened(writer, tmp_path / "b", PALETTE, "stored"):
        np.testing.assert_array_equal(found, INDICES[..., None])
    for found in opened(writer, tmp_path / "c", GRAY16, "stored"):
        assert found.dtype == np.uint16
        np.testing.assert_array_equal(found, DEEP[..., None])
    for found in opened(writer, tmp_path / "d", GRAY16, False):
        assert found == GRAY16
    for found in opened(writer, tmp_path / "e", turned("PNG"), "upright"):
        assert found.shape == (32, 16, 1)
        assert found[0, 0] == 255
        assert found[-1, 0] == 0


def test_row_groups_without_a_copy(tmp_path):
    for found in opened(in_parquet, tmp_path / "a", GRAY16, "stored", cache=False):
        np.testing.assert_array_equal(found, DEEP[..., None])
    with pytest.raises(ArgumentError, match="`decode` names 'imgae', and .* has 'image'"):
        Dataset.open(tmp_path / "a", decode={"imgae": False}, cache=False)


def test_an_image_file_by_its_name(tmp_path):
    (tmp_path / "0.png").write_bytes(PALETTE)
    found = Dataset.open(tmp_path / "0.png", decode="stored")[0]["image"]
    np.testing.assert_array_equal(found, INDICES[..., None])


def test_mds(tmp_path):
    def record(decode):
        return Dataset.open(FILES / "mds/mixed", columns=["png", "text"], decode=decode)[1]

    plain = record(True)
    for way in ("stored", "upright", {"png": "stored"}):
        np.testing.assert_array_equal(record(way)["png"], plain["png"])
    assert record({"png": False})["png"] == record(False)["png"]
    assert record({"png": False})["text"] == plain["text"]


def test_tfds():
    path, columns = FILES / "tfds/tfrecord/kinds", ["image", "deep", "text"]

    def record(decode):
        return Dataset.open(path, split="train", columns=columns, decode=decode)[1]

    plain = record(True)
    for way in ("stored", "upright", {"image": "stored"}):
        for name in ("image", "deep"):
            np.testing.assert_array_equal(record(way)[name], plain[name])
        assert record(way)["text"] == plain["text"]
    assert record({"image": False})["image"].startswith(b"\x89PNG")
    np.testing.assert_array_equal(record({"image": False})["deep"], plain["deep"])
    assert record({"text": False})["text"] == plain["text"].encode()


# The argument -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decode", "error", "message"),
    [
        (
            "exif",
            ArgumentError,
            "`decode` must be True, False, 'upright' or 'stored', or a dict of these by leaf; "
            "got 'exif'.",
        ),
        (None, ArgumentTypeError, "or a dict of these by leaf; got None."),
        (
            {"image": "raw"},
            ArgumentError,
            "`decode['image']` must be True, False, 'upright' or 'stored'; got 'raw'.",
        ),
    ],
)
def test_wrong_arguments(tmp_path, decode, error, message):
    in_folder(tmp_path / "a", PALETTE)
    with pytest.raises(error, match=re.escape(message)):
        Dataset.open(tmp_path / "a", decode=decode)


@pytest.mark.parametrize("writer", [in_folder, in_arrow, in_parquet, in_tar])
def test_a_wrong_leaf_is_named(tmp_path, writer):
    writer(tmp_path / "a", PALETTE)
    with pytest.raises(ArgumentError, match="`decode` names 'imgae', and .*/a has .*'image"):
        Dataset.open(tmp_path / "a", decode={"imgae": False})


def test_columns_may_leave_out_what_is_named(tmp_path):
    in_folder(tmp_path / "a", PALETTE)
    dataset = Dataset.open(tmp_path / "a", decode={"image": "stored"}, columns=["label"])
    assert list(dataset[0]) == ["label"]


def test_fingerprints(tmp_path):
    """True and False are not in them, as before there were other values."""
    in_folder(tmp_path / "a", PALETTE)

    def chain(decode):
        loader = DataLoader(Dataset.open(tmp_path / "a", decode=decode).batch(1))
        return iter(loader).get_state()["chain"][1]

    plain = "source(length=1, spec=None)"
    assert chain(True) == chain({"image": True}) == chain({}) == plain
    assert chain("stored") == "source(length=1, spec=None, decode='stored')"
    assert chain({"image": "upright"}) == "source(length=1, spec=None, decode='image=upright')"
    assert "decode" not in chain(False)


def test_a_state_of_another_way_is_refused(tmp_path):
    in_folder(tmp_path / "a", GRAY16)
    state = iter(DataLoader(Dataset.open(tmp_path / "a").batch(1))).get_state()
    other = iter(DataLoader(Dataset.open(tmp_path / "a", decode="stored").batch(1)))
    with pytest.raises(StateError, match="decode"):
        other.set_state(state)


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_engines(tmp_path, engine):
    (tmp_path / "a/class").mkdir(parents=True)
    for number in range(6):
        (tmp_path / f"a/class/{number}.png").write_bytes(png(DEEP + number))
    dataset = Dataset.open(tmp_path / "a", decode="stored").shuffle(seed=1).batch(2)
    with DataLoader(
        dataset, engine=engine, num_workers=None if engine == "inline" else 2
    ) as loader:
        batches = list(loader)
    assert all(batch["image"].dtype == np.uint16 for batch in batches)
    firsts = np.concatenate([batch["image"][:, 0, 0, 0] for batch in batches])
    assert sorted(firsts.tolist()) == list(range(6))
