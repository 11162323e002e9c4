"""Shapes of an operator's results before it has run: from a run on zeros, the first time that it gets such shapes."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True, slots=True)
class Form:
    """Shape, strides and type of a tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Elements of memory that it spans."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def bytes(self) -> int:
        """Bytes of memory that it spans."""
        return self.elements * self.dtype.itemsize


def form_of(tensor: torch.Tensor) -> Form:
    """Returns the form of a tensor."""
    return Form(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


class ShapeInference:
    """Infers the forms of results, and remembers them: a training repeats the same operators on the same shapes."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._known: dict[Any, Any] = {}
        self._mode = FakeTensorMode()
        self._lock = threading.Lock()

    def results(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, computes: bool = True) -> Any:
        """Returns the results with a form in place of each tensor; None if they depend on data.

        Args:
            operator: the operator.
            args: its arguments on the host, of which only the forms are read.
            kwargs: arguments by name.
            computes: whether values matter, so that strides have to be those of the CPU's kernels; else they are those
                of torch's shape functions, which run nothing.
        """
        # An operator may return more where gradients are enabled: what its backward needs.
        key = (computes, torch.is_grad_enabled(), operator, key_of(args), key_of(tuple(sorted(kwargs.items()))))
        with self._lock:
            if key not in self._known:
                self._known[key] = self._infer(operator, args, kwargs, computes)
            return self._known[key]

    def _infer(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], computes: bool) -> Any:
        def like(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()

        def forms() -> Any:
            result = operator(*tree_map_only(torch.Tensor, like, args), **tree_map_only(torch.Tensor, like, kwargs))
            return tree_map_only(torch.Tensor, _dense_form, result)

        if _depends_on_values(operator, args):
            return None
        if not computes and (known := _of_batch_norm(operator, args)) is not None:
            return known
        with torch.random.fork_rng(devices=[]):
            try:
                with nullcontext() if computes else self._mode:
                    return forms()
            except RuntimeError:  # of zeros: they have no inverse, for example; or an operator without shape function
                with self._mode if computes else nullcontext():
                    return forms()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested lists, tuples and values of mappings, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def _depends_on_values(operator: Any, args: Sequence[Any]) -> bool:
    """Returns whether the shapes of the results follow from values; those of an index by numbers do not."""
    if operator is torch.ops.aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.dynamic_output_shape in operator.tags


def _of_batch_norm(operator: Any, args: Sequence[Any]) -> tuple[Form, ...] | None:
    """Returns the results of a batch normalisation in training and of its backward, if all are dense and of one type.

    torch's shape functions decompose it into its arithmetic, which takes ten times as long as for a convolution.
    """
    aten = torch.ops.aten
    if operator is aten.native_batch_norm.default and args[5]:
        data, weight = args[0], args[1]
    elif operator is aten.native_batch_norm_backward.default and args[7] and all(args[9]) and args[0].is_contiguous():
        data, weight = args[1], args[2]
    else:
        return None
    if not data.is_contiguous() or any(x is None or x.dtype != torch.float32 for x in (data, *args[1:5])):
        return None
    return form_of(data), form_of(weight), form_of(weight)


def _dense_form(tensor: torch.Tensor) -> Form:
    form = form_of(tensor)
    if any(stride == 0 and size > 1 for size, stride in zip(form.shape, form.strides, strict=True)):
        # A new tensor's elements do not overlap.
        return form_of(torch.empty(tensor.shape, dtype=tensor.dtype))
    return form


def key_of(value: Any) -> Any:
    """Returns a key of arguments, in which tensors count by their forms."""
    if isinstance(value, torch.Tensor):
        return form_of(value)
    if isinstance(value, list | tuple):
        return tuple(map(key_of, value))
    # True, 1 and 1.0 are equal, and give results of other types.
    return type(value), value if value.__hash__ else repr(value)
