"""Parsing and formatting of the shapes of a model's inputs."""

import re
from collections.abc import Mapping
from typing import Annotated

from deeppool.errors import InvalidValueError
from deeppool.graph.layer import Input

Shape = tuple[int, ...]
Shapes = Annotated[Shape | Mapping[str, Shape], "checked beside the model, which the message names"]
"""Shape of a sample, without the batch: of the only input, or by the name of its argument (empty: the first)."""


def parse_shapes(text: str) -> Shapes | None:
    """Parses ``3,224,224``, or ``input_ids=128,decoder_input_ids=64`` for several inputs; None for an empty text.

    Raises:
        InvalidValueError: anything else.
    """

    def numbers(sizes: str) -> Shape:
        try:
            return tuple(int(size) for size in re.split("[,x]", sizes))
        except ValueError:
            raise InvalidValueError(
                f"an input shape takes whole numbers with commas, got '{text}' (for example 3,224,224, or "
                "input_ids=128,decoder_input_ids=64)"
            ) from None

    text = text.strip()
    if "=" not in text:
        return numbers(text) if text else None
    named = re.split(r",\s*(?=[A-Za-z_]\w*\s*=)", text)
    return {name.strip(): numbers(sizes) for name, _, sizes in (part.partition("=") for part in named)}


def format_shapes(inputs: tuple[Input, ...]) -> str:
    """Formats shapes as :func:`parse_shapes` reads them."""
    return ",".join(
        (f"{given.name}=" if given.name and len(inputs) > 1 else "") + ",".join(map(str, given.shape))
        for given in inputs
    )
