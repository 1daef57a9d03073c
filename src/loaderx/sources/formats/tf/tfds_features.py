"""``features.json`` of TFDS: the type of each leaf of a record, and how it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from loaderx.errors import FileError
from loaderx.frozen import Frozen
from loaderx.sources.cache.folder import Json
from loaderx.sources.decoding import Decoding
from loaderx.sources.formats.tf.decoders import (
    NO_FILL,
    Bytes,
    Decoder,
    Fixed,
    FixedBytes,
    Ragged,
    Raw,
    Text,
)
from loaderx.sources.formats.tf.example import BYTES, FLOAT, INT64
from loaderx.sources.formats.tf.example_source import DecoderTree
from loaderx.sources.formats.tf.tfds_decoders import (
    Decoded,
    DecodedSequence,
    DecodeImage,
    DecodeTensor,
    DecodeText,
    DecodeValue,
    Dynamic,
    Nested,
    Shape,
)
from loaderx.tree import ArraySpec

JsonDict: TypeAlias = "dict[str, Json]"

_TEXT_TYPES = ("string", "object", "str", "str_", "bytes", "object_")
_OBJECT: np.dtype[np.generic] = np.dtype(object)
_MOST_DIGITS = 6  # of a number of classes


class LeafType(Frozen):
    """One leaf: its name in the files, the type of a value, and the sequences around it."""

    path: str
    shape: Shape
    dtype: np.dtype[np.generic]
    lengths: tuple[int | None, ...]  # of the sequences, the outermost first
    decode: DecodeValue | None = None  # of values that are stored as bytes
    default: object = NO_FILL  # of an optional value
    is_shown_as_bytes: bool = False  # with decode=False
    has_classes: bool = False
    class_count: int = 0  # as in the description; 0 if it has none


class FeatureError(Exception):
    """Raised for a feature that is unknown, or not as it should be."""


LeafTree: TypeAlias = "dict[str, LeafType | LeafTree]"


def read_features(told: Json, chosen: list[str] | None, where: str) -> LeafTree:
    """The leaves of the chosen top-level features; a `FileError` names unknown features."""
    found: LeafTree = {}
    features = top_level(told, where)
    for name in features if chosen is None else chosen:
        try:
            found[name] = _node(features[name], name, ())
        except FeatureError as error:
            others = [one for one in features if one != name]
            raise FileError(
                f"{where}: {error}. Leave it out with columns={others[:3]}"
                f"{' and so on' if len(others) > 3 else ''}."
            ) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{where}: the feature {name!r} is damaged ({error!r}).") from error
    return found


def top_level(told: Json, where: str) -> dict[str, JsonDict]:
    """The features of a record, by name."""
    try:
        features = told["featuresDict"]["features"]  # type: ignore[index, call-overload]
        return {str(name): dict(one) for name, one in features.items()}  # type: ignore[arg-type, union-attr]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(
            f"{where} is damaged, or of a TFDS before 4.3: it has no dict of features."
        ) from error


def _node(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType | LeafTree:
    for kind, read in _KINDS.items():
        if kind in told:
            content = told[kind]
            if not isinstance(content, dict):
                raise ValueError(kind)
            return read(content, path, lengths)
    name = str(told.get("pythonClassName", told.get("type", "?"))).rpartition(".")[2]
    raise FeatureError(f"the feature {path!r} is a {name}, which loaderx does not know")


def _dict(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafTree:
    features = told.get("features", {})
    assert isinstance(features, dict)
    return {name: _node(one, f"{path}/{name}", lengths) for name, one in features.items()}  # type: ignore[arg-type]


def _sequence(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType | LeafTree:
    return _node(told["feature"], path, (*lengths, _axis(told.get("length", -1))))  # type: ignore[arg-type]


def _tensor(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    shape, dtype = _shape(told), _dtype(told, path)
    encoding = str(told.get("encoding") or "none").lower()
    if encoding not in ("none", "bytes", "zlib"):
        raise FeatureError(f"the tensor {path!r} has the unknown encoding {encoding!r}")
    decode = None if encoding == "none" else DecodeTensor(shape, dtype, encoding == "zlib")
    default = _default(shape, dtype) if told.get("optional") else NO_FILL
    return LeafType(path, shape, dtype, lengths, decode, default)


def _default(shape: Shape, dtype: np.dtype[np.generic]) -> object:
    """The value of TFDS in place of a missing optional one."""
    if dtype == _OBJECT:
        return b""
    if dtype.kind == "f":
        return np.finfo(dtype).min  # type: ignore[type-var]
    return False if dtype.kind == "b" else np.iinfo(dtype).min  # type: ignore[type-var]


def _text(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    if told.get("encoder") or told.get("encoderConfig"):
        raise FeatureError(f"the text {path!r} has an encoder, which TFDS has given up")
    return LeafType(
        path, (), _OBJECT, lengths, DecodeText(), "" if told.get("optional") else NO_FILL, True
    )


def _class_label(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    count = str(told.get("numClasses", 0))
    count = count if count.isdecimal() and len(count) <= _MOST_DIGITS else "0"
    return LeafType(path, (), np.dtype(np.int64), lengths, has_classes=True, class_count=int(count))


def _box(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    return LeafType(path, (4,), np.dtype(np.float32), lengths)


def _image(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    shape, dtype = _shape(told) or (None, None, 3), _dtype(told, path)
    if len(shape) != 3:
        raise FeatureError(f"the image {path!r} has {len(shape)} axes: it is an animation")
    if dtype not in (np.uint8, np.uint16, np.float32) or (dtype == np.uint16 and shape[-1] != 1):
        raise FeatureError(
            f"the image {path!r} is {dtype} with {shape[-1]} channels, which Pillow cannot decode"
        )
    decode = DecodeImage(shape, dtype)
    return LeafType(path, shape, dtype, lengths, decode, NO_FILL, True, "label" in told)


def _video(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    shape = _shape(told) or (None, None, None, 3)
    axes: list[Json] = [-1 if axis is None else axis for axis in shape[1:]]
    frame: JsonDict = {**told, "shape": {"dimensions": axes}}
    return _image(frame, path, (*lengths, shape[0]))


def _audio(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafType:
    if told.get("lazyDecode"):  # a file of some format, for which there is no decoder here
        return LeafType(path, (), _OBJECT, lengths)
    return _tensor(told, path, lengths)


def _translation(told: JsonDict, path: str, lengths: tuple[int | None, ...]) -> LeafTree:
    if told.get("variableLanguagesPerExample"):
        names, lengths = ["language", "translation"], (*lengths, None)
    else:
        names = [str(one) for one in told.get("languages", [])]  # type: ignore[union-attr]
    return {name: _text({}, f"{path}/{name}", lengths) for name in names}


_Read: TypeAlias = "Callable[[JsonDict, str, tuple[int | None, ...]], LeafType | LeafTree]"
_KINDS: dict[str, _Read] = {
    "featuresDict": _dict,
    "sequence": _sequence,
    "tensor": _tensor,
    "text": _text,
    "classLabel": _class_label,
    "boundingBox": _box,
    "image": _image,
    "video": _video,
    "audio": _audio,
    "translation": _translation,
}


def _shape(told: JsonDict) -> Shape:
    shape = told.get("shape") or {}
    assert isinstance(shape, dict)
    return tuple(_axis(axis) for axis in shape.get("dimensions", []))  # type: ignore[union-attr]


def _axis(told: Json) -> int | None:
    number = int(told)  # type: ignore[arg-type]
    return None if number < 0 else number


def _dtype(told: JsonDict, path: str) -> np.dtype[np.generic]:
    name = str(told.get("dtype") or "uint8")
    if name in _TEXT_TYPES:
        return _OBJECT
    try:
        found = np.dtype(name)
    except TypeError as error:
        raise FeatureError(
            f"the feature {path!r} has the dtype {name}, unknown to NumPy"
        ) from error
    if found.kind not in "biuf" or found.itemsize > 8:
        raise FeatureError(f"the feature {path!r} has the dtype {name}")
    return found


# Decoders ---------------------------------------------------------------------------------------


def make_decoders(leaves: LeafTree, decode: Decoding, fill: Mapping[str, object]) -> DecoderTree:
    """A decoder for each leaf."""
    return {
        name: make_decoder(one, decode.below(name).way, fill.get(one.path, one.default))
        if isinstance(one, LeafType)
        else make_decoders(one, decode.below(name), fill)
        for name, one in leaves.items()
    }


def make_decoder(leaf: LeafType, way: bool | str, fill: object) -> Decoder:
    """The decoder of a leaf."""
    name, shape, dtype, lengths = leaf.path, leaf.shape, leaf.dtype, leaf.lengths
    if leaf.is_shown_as_bytes and not way:
        shape, dtype = (), _OBJECT
        value: DecodeValue | None = None
    else:
        value = leaf.decode.by(way) if isinstance(leaf.decode, DecodeImage) else leaf.decode
    kind = BYTES if value is not None else kind_of(dtype)
    is_dynamic = isinstance(value, DecodeTensor) and shape.count(None) > 1
    if len(lengths) > 1 and not is_dynamic and (value is None or None not in shape):
        known = tuple(axis for axis in shape if axis is not None)
        return Nested(name, kind, lengths, known, dtype, value)
    if len(lengths) > 1:
        raise FileError(f"the feature {name!r} has tensors of various shapes in nested sequences.")
    if is_dynamic and isinstance(value, DecodeTensor):
        return Dynamic(name, value, bool(lengths))
    if lengths and value is not None:
        return DecodedSequence(name, value, lengths[0])
    if value is not None:
        return _one_decoded(name, value, shape, dtype, fill)
    return _plain(name, kind, (*lengths, *shape), dtype, fill)


def _one_decoded(
    name: str, value: DecodeValue, shape: Shape, dtype: np.dtype[np.generic], fill: object
) -> Decoder:
    if isinstance(value, DecodeText):
        return Text(name, fill)
    if (
        isinstance(value, DecodeTensor)
        and None not in shape
        and not value.is_zlib
        and fill is NO_FILL
    ):
        return Raw(name, ArraySpec(shape, dtype))
    return Decoded(name, value, fill)


def _plain(
    name: str, kind: int, shape: Shape, dtype: np.dtype[np.generic], fill: object
) -> Decoder:
    if shape.count(None) > 1:
        raise FileError(f"the feature {name!r} has several open axes, and no encoding.")
    known = tuple(axis for axis in shape if axis is not None)
    if kind == BYTES:
        if not shape:
            return Bytes(name, fill)
        return Ragged(name, kind, None, shape) if None in shape else FixedBytes(name, known)
    if None in shape:
        return Ragged(name, kind, dtype, shape)
    return Fixed(name, kind, ArraySpec(known, dtype), fill)


def kind_of(dtype: np.dtype[np.generic]) -> int:
    """How values of a dtype are stored: as bytes, floats or integers."""
    return BYTES if dtype == _OBJECT else FLOAT if dtype.kind == "f" else INT64
