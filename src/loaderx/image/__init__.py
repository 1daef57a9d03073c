"""Images of one size from encoded ones, decoding no more than is needed.

Records hold the bytes of image files, as ``Dataset.open(..., decode=False)`` gives them, or images
that are decoded already.  The stages here know which part of an image is wanted, and how large,
before it is decoded: so a JPEG of 1600 x 1200 is decoded at a half, a quarter or an eighth of its
size where 224 x 224 pixels are asked for.

>>> import io, loaderx as lx
>>> from PIL import Image
>>> file = io.BytesIO()
>>> Image.new("RGB", (640, 480), "teal").save(file, "JPEG")
>>> ds = lx.Dataset.from_source([{"image": file.getvalue(), "label": 7}])
>>> train = ds.random_map(lx.image.random_resized_crop(224), seed=0)
>>> test = ds.map(lx.image.center_crop(224, shorter_side=256))
>>> train[0]["image"].shape, test[0]["image"].shape
((224, 224, 3), (224, 224, 3))

Results are ``uint8[height, width, channels]``.  Images are resized bilinearly with antialiasing, as
Pillow does it with ``reducing_gap=2``, and are not turned, whatever EXIF says.  This module is
imported when it is first used.
"""

import sys as _sys

from loaderx.hints import attribute_error as _attribute_error
from loaderx.image.crops import center_crop, random_resized_crop, resize
from loaderx.image.decoding import decode
from loaderx.image.moves import random_flip_left_right, random_flip_up_down, random_pad_and_crop
from loaderx.image.normalizing import normalize
from loaderx.image.retouching import color_jitter, rand_augment, random_erasing

__all__ = [
    "center_crop",
    "color_jitter",
    "decode",
    "normalize",
    "rand_augment",
    "random_erasing",
    "random_flip_left_right",
    "random_flip_up_down",
    "random_pad_and_crop",
    "random_resized_crop",
    "resize",
]

_MIXED = "It mixes rows of a batch: call loaderx.jax.image.{} in the training step."
_WORDS = {  # of torchvision, Albumentations, TensorFlow and OpenCV
    "CenterCrop": "Write center_crop(224, shorter_side=256), which resizes, too.",
    "CoarseDropout": "Write random_erasing(probability=0.5).",
    "ColorJitter": "Write color_jitter(0.4, 0.4, 0.4, 0.1).",
    "CutMix": _MIXED.format("cutmix"),
    "MixUp": _MIXED.format("mixup"),
    "Normalize": "Write normalize(mean=..., std=...), in a map after batch.",
    "RandAugment": "Write rand_augment(num_ops=2, magnitude=9).",
    "RandomCrop": "Write random_pad_and_crop(4), or random_resized_crop(224).",
    "RandomErasing": "Write random_erasing(probability=0.5).",
    "RandomHorizontalFlip": "Write random_flip_left_right(probability=0.5).",
    "RandomResizedCrop": "Write random_resized_crop(224).",
    "RandomVerticalFlip": "Write random_flip_up_down(probability=0.5).",
    "Resize": "Write resize((height, width)), or center_crop(224, shorter_side=256).",
    "crop_and_resize": "Write random_resized_crop(224), or center_crop(224, shorter_side=256).",
    "decode_and_crop_jpeg": "Write random_resized_crop(224), which decodes what it needs.",
    "decode_image": "Write decode(data).",
    "decode_jpeg": "Write decode(data).",
    "imdecode": "Write decode(data).",
    "random_cutout": "Write random_erasing(), or loaderx.jax.image.random_cutout in the step.",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    raise _attribute_error("module 'loaderx.image'", _WORDS, name, _sys.modules[__name__])
