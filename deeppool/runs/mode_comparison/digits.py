"""Images of digits, drawn from the fonts that ship with JupyterLab, so that nothing has to be downloaded.

Each image is a digit of one of about a dozen type faces (Fraktur and script among them), rotated, sheared, scaled and
moved at random, under noise. Training and test images differ in all of these but the face.
"""

import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from deeppool.errors import RunError

SIDE = 16
"""Pixels of an image's side."""
CLASSES = 10
_DRAWN = 32
"""Pixels of a digit before it is distorted."""
_POINTS = 26
_NOISE = 0.1
"""Standard deviation, where ink is 1."""


@functools.cache
def digit_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws images, and returns them with their digits."""
    draw = np.random.default_rng(seed)
    faces = _faces()
    digits = draw.integers(CLASSES, size=count)
    images = np.stack([_distorted(faces[draw.integers(len(faces))][digit], draw) for digit in digits])
    noise = draw.normal(0.0, _NOISE, images.shape)
    return torch.from_numpy((images + noise).astype(np.float32)[:, None]), torch.from_numpy(digits)


def _distorted(digit: Image.Image, draw: np.random.Generator) -> NDArray[np.float64]:
    """Rotates, shears, scales and moves a digit, and shrinks it to the size of an image."""
    angle, shear = draw.uniform(-0.3, 0.3), draw.uniform(-0.2, 0.2)
    scale = draw.uniform(0.65, 1.0)
    cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
    turn = np.array([[cosine, -sine + shear], [sine, cosine]])
    middle = np.full(2, _DRAWN / 2)
    shift = middle - turn @ (middle + draw.uniform(-2, 2, 2))
    placed = digit.transform(
        digit.size, Image.Transform.AFFINE, (*turn[0], shift[0], *turn[1], shift[1]), Image.Resampling.BILINEAR
    )
    return np.asarray(placed.resize((SIDE, SIDE), Image.Resampling.BOX), np.float64) / 255


@functools.cache
def _faces() -> tuple[tuple[Image.Image, ...], ...]:
    """Returns the ten digits of each face that has them, the same on all ranks."""
    found = {b"".join(image.tobytes() for image in digits): digits for path in _fonts() for digits in _digits(path)}
    if not found:
        raise RunError("the fonts of JupyterLab have no digits (install jupyterlab again)")
    return tuple(found.values())


def _fonts() -> list[Path]:
    package = importlib.util.find_spec("jupyterlab")
    if package is None or package.origin is None:
        raise RunError(
            "images of digits are drawn from the fonts of JupyterLab, which is not here (install jupyterlab)"
        )
    static = Path(package.origin).parent / "static"
    return sorted(path for path in static.iterdir() if path.suffix in (".woff", ".woff2", ".ttf"))


def _digits(path: Path) -> Iterator[tuple[Image.Image, ...]]:
    """Yields a face's digits if it has all of them."""
    try:
        font = ImageFont.truetype(str(path), _POINTS)
    except OSError:
        return
    drawn = tuple(_drawn(str(digit), font) for digit in range(CLASSES))
    missing = _drawn("\uffff", font).tobytes()
    different = {image.tobytes() for image in drawn}
    if len(different) == CLASSES and missing not in different and all(image.getbbox() for image in drawn):
        yield drawn


def _drawn(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    image = Image.new("L", (_DRAWN, _DRAWN))
    ImageDraw.Draw(image).text((_DRAWN / 2, _DRAWN / 2), character, fill=255, font=font, anchor="mm")
    return image
