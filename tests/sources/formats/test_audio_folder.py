"""Folders of sound, and audio files."""

from __future__ import annotations

import io

import numpy as np
import pytest

from loaderx import ArgumentError, DataLoader, Dataset, FileError, RecordError
from loaderx.testing import SourceContract

soundfile = pytest.importorskip("soundfile", reason="soundfile (the extra audio) is not installed")

FILES = ["no/a.wav", "no/b.FLAC", "yes/1.wav", "yes/more/2.wav", "yes/more/3.aiff"]
LABELS = [0, 0, 1, 1, 1]


def samples(number):
    """Of various lengths; exact in 16 bits."""
    numbers = np.random.default_rng(number).integers(-(2**15), 2**15, 50 + number)
    return (numbers / 2**15).astype(np.float32)


def write(path, number, rate=8000):
    path.parent.mkdir(parents=True, exist_ok=True)
    out = io.BytesIO()
    soundfile.write(out, samples(number), rate, format=path.suffix[1:].upper())
    path.write_bytes(out.getvalue())


@pytest.fixture
def words(tmp_path):
    root = tmp_path / "words"
    for number, name in enumerate(FILES):
        write(root / name, number, 8000 + number)
    (root / "no" / "notes.txt").write_text("no sound")
    return root


class TestClasses(SourceContract):
    @pytest.fixture(autouse=True)
    def folder(self, words):
        self.root = words

    def make_source(self):
        return Dataset.open(self.root)

    def expected_records(self):
        return [
            {
                "audio": samples(number),
                "sampling_rate": np.int32(8000 + number),
                "label": np.int64(label),
            }
            for number, label in enumerate(LABELS)
        ]


class TestRates(TestClasses):
    def make_source(self):
        return Dataset.open(self.root, columns=["sampling_rate", "label"])

    def expected_records(self):
        return [
            {"sampling_rate": np.int32(8000 + number), "label": np.int64(label)}
            for number, label in enumerate(LABELS)
        ]


class TestBytes(TestClasses):
    def make_source(self):
        return Dataset.open(self.root, decode=False)

    def expected_records(self):
        return [
            {"audio": (self.root / name).read_bytes(), "label": np.int64(label)}
            for name, label in zip(FILES, LABELS, strict=True)
        ]


class TestFiles(TestClasses):
    """By their first bytes."""

    def make_source(self):
        return Dataset.open([self.root / name for name in FILES])

    def expected_records(self):
        return [
            {"audio": samples(number), "sampling_rate": np.int32(8000 + number)}
            for number in range(len(FILES))
        ]


def test_classes_and_label(words):
    dataset = Dataset.open(words)
    assert dataset.classes == {"label": ("no", "yes")}
    assert repr(dataset).startswith("Dataset.open(audio: audio, sampling_rate, label)")
    assert Dataset.open(words, decode={"audio": False})[0]["audio"].startswith(b"RIFF")


def test_splits(tmp_path):
    for split in ("train", "test"):
        for name in FILES:
            write(tmp_path / split / name, 0)
    assert len(Dataset.open(tmp_path, split="train")) == 5
    with pytest.raises(ArgumentError, match="has the splits 'train', 'test'"):
        Dataset.open(tmp_path)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF"])
def test_a_file_is_known_by_its_first_bytes(tmp_path, kind):
    soundfile.write(tmp_path / "sound", samples(1), 8000, format=kind)
    record = Dataset.open(tmp_path / "sound")[0]
    assert record["sampling_rate"] == 8000
    assert len(record["audio"]) >= 51


def test_images_beside_sound_are_ambiguous(words):
    image = pytest.importorskip("PIL.Image", reason="Pillow (the extra images) is not installed")
    image.new("RGB", (3, 3)).save(words / "no" / "spectrum.png")
    with pytest.raises(FileError, match="may be 'audio', 'images': say which with format="):
        Dataset.open(words)
    assert len(Dataset.open(words, format="audio")) == 5


@pytest.mark.parametrize("engine", ["inline", "threads", "processes"])
def test_a_damaged_file_is_named(words, engine):
    (words / "yes/1.wav").write_bytes(b"none")
    dataset = Dataset.open(words)
    workers = {} if engine == "inline" else {"num_workers": 2}
    with (
        DataLoader(dataset.batch(5, pad_to={"audio": 60}), engine=engine, **workers) as loader,
        pytest.raises(RecordError, match=r"yes/1\.wav: the audio is damaged"),
    ):
        list(loader)
    kept = dataset.on_error("skip").batch(4, pad_to={"audio": 60})
    with DataLoader(kept, engine=engine, **workers) as loader:
        (batch,) = loader
    assert batch["audio_length"].tolist() == [50, 51, 53, 54]
    np.testing.assert_array_equal(batch["audio"][2, :53], samples(3))


def test_captions_beside_sound_are_not_left_out_silently(tmp_path):
    write(tmp_path / "1.wav", 1)
    (tmp_path / "1.txt").write_text("one")
    with pytest.raises(FileError, match=r"1\.txt lies beside 1\.wav and would be left out"):
        Dataset.open(tmp_path)


def test_a_folder_without_sound(tmp_path):
    with pytest.raises(FileError, match=r"has no audio: files that end with \.wav, \.flac"):
        Dataset.open(tmp_path, format="audio")
