"""Input records from the shapes and dtypes that users give."""

import operator
from collections.abc import Mapping
from typing import get_args

import numpy as np
import torch

from deeppool.errors import CaptureError
from deeppool.graph.layer import Dtype, Input
from deeppool.graph.shapes import Shape, Shapes

Dtypes = torch.dtype | Mapping[str, torch.dtype]


def resolve(defaults: tuple[Input, ...], model: str, shapes: Shapes | None, dtypes: Dtypes | None) -> tuple[Input, ...]:
    """Resolves the inputs of a model: its defaults, overridden by the given shapes and dtypes.

    A single shape or dtype applies to every default input.

    Raises:
        CaptureError: no shape, one without positive sizes, or a name that the model does not have.
    """
    own = {given.name: given for given in defaults}
    names = list(own) or [""]
    if isinstance(shapes, Mapping):
        names = list(own) or list(shapes)
        _check_names(model, shapes, names, "input_shape")
    if isinstance(dtypes, Mapping):
        _check_names(model, dtypes, names, "input_dtype")
    found = []
    for name in names:
        default = own.get(name)
        shape = shapes.get(name) if isinstance(shapes, Mapping) else shapes
        # One empty shape, for whatever inputs there are, says as little as none.
        if default is not None and (shape is None or (shape is shapes and not np.size(shape))):
            shape = default.shape
        dtype = dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
        sizes = _sizes(shape, f"{name} of {model}" if name else model)
        otherwise = "float32" if default is None else default.dtype
        found.append(Input(name, sizes, otherwise if dtype is None else _dtype_name(dtype)))
    if not found:
        raise CaptureError(f"input_shape of {model} names no input: a model must take a tensor that has a batch")
    return tuple(found)


def _sizes(shape: Shape | None, of: str) -> tuple[int, ...]:
    """Returns a shape as integers of Python."""
    if shape is None:
        raise CaptureError(
            f"{of} needs the shape of one sample: give input_shape (--input-shape), for example 3,224,224, or set it "
            "as an attribute of the callable that makes the model"
        )
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise CaptureError(
            f"input_shape of {of} is {shape}, expected the positive sizes of one sample (for example 3,224,224, or 1 "
            "for one number)"
        )
    return sizes


def _check_names(model: str, given: Mapping[str, object], known: list[str], argument: str) -> None:
    for name in given:
        if name not in known:
            raise CaptureError(
                f"{argument} names '{name}', which is no input of {model}: "
                f"it takes {', '.join(filter(None, known)) or 'one, without a name'}"
            )


def _dtype_name(dtype: torch.dtype) -> Dtype:
    for name in get_args(Dtype):
        if getattr(torch, name) is dtype:
            found: Dtype = name
            return found
    raise CaptureError(f"input_dtype is {dtype}, expected one of {', '.join(get_args(Dtype))}")


def torch_dtype(given: Input) -> torch.dtype:
    """Returns the torch dtype of an input."""
    found: torch.dtype = getattr(torch, given.dtype)
    return found


def describe(inputs: tuple[Input, ...]) -> str:
    """Formats inputs, such as ``shape (3, 32, 32)``, with names and with dtypes other than float32."""
    return " and ".join(
        f"{f'{given.name} ' if given.name else ''}shape {given.shape}"
        f"{'' if given.dtype == 'float32' else f' of {given.dtype}'}"
        for given in inputs
    )
