"""Recognition and decoding of image files."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from lit_fednas.data.sources.base import reading
from lit_fednas.errors import DataError

#: Formats that are recognised by a file's first bytes; Pillow's others need the right suffix.
SIGNED = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "QOI", "SGI", "TIFF", "WEBP")
#: Formats that Pillow does not decode itself.
FOREIGN = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})


def is_image(path: str) -> bool:
    """Returns whether a file is an image; raises DataError if only its suffix is that of an image."""
    readable = _formats()
    with open(path, "rb") as file:
        prefix = file.read(16)
    if any(Image.OPEN[name][1](prefix) for name in SIGNED if name in readable):  # type: ignore[misc]
        return True
    claims = Image.EXTENSION.get(os.path.splitext(path)[1].lower()) in readable
    if claims:
        with reading(Path(path), "data.source"):
            Image.open(path, formats=readable).close()
    return claims


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in Image.OPEN if name not in FOREIGN)


def read_image(path: Path, image_size: int | None, channels: int) -> np.ndarray:
    """Decodes a file to uint8 [C, H, W], scaled and cropped to a square of ``image_size``."""
    mode = "L" if channels == 1 else "RGB"
    with reading(path, "data.source"), Image.open(path, formats=_formats()) as image:
        if image.width * image.height <= 1:
            raise DataError(f"data.source: {path} has {image.width}x{image.height} pixels; replace or remove it")
        if image_size is not None:
            image.draft(mode, (2 * image_size, 2 * image_size))  # large JPEGs decode at a reduced scale
        picture = _as_seen(image, path).convert(mode)
        if image_size is not None and picture.size != (image_size, image_size):
            picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)


def steps_of(image_size: int | None, channels: int) -> dict[str, Any]:
    """Returns descriptions of the steps of :func:`read_image`, in their order."""
    steps = {"rotation": "upright, by EXIF", "background": "white", "colour": "grey" if channels == 1 else "RGB"}
    if size := image_size:
        steps |= {"crop": "centre square", "size": f"{size}x{size}", "interpolation": "bilinear, antialiased"}
        steps["in Pillow"] = f"ImageOps.fit(image, ({size}, {size}), Image.Resampling.BILINEAR)"
    return {**steps, "order": "channels, rows, columns"}


def _as_seen(image: Image.Image, path: Path) -> Image.Image:
    """Returns an upright image with 8 bits per channel, on a white background."""
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in {"PNG", "PPM"}):  # 16-bit values
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode[0] in "IF":
        raise DataError(f"data.source: {path} has signed numbers, or more than 16 bits per channel; convert it to 8")
    if not image.has_transparency_data:
        return image
    coloured = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", coloured.size, "white"), coloured)
