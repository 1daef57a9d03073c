"""Writes tests/files/array_record: files of the library array_record, packed with gzip.

Run with array_record 0.8.6:

    python tests/files/make_array_record.py

The files have 64 kB at least, mostly zeros; hence gzip.  Record ``i`` is ``record(i)``.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

HERE = Path(__file__).parent / "array_record"
sys.path.append(str(Path(__file__).parents[1] / "support"))
from array_record_examples import FILES, record  # noqa: E402


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for name, (count, options) in FILES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            writer = ArrayRecordWriter(str(path), options)
            for i in range(count):
                writer.write(record(i))
            writer.close()
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
            (HERE / f"{name}.arrayrecord.gz").write_bytes(packed)


if __name__ == "__main__":
    main()
