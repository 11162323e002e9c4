"""Which arguments of an operator are read, and which are written, by its schema."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_STATISTICS = ("running_mean", "running_var")
_UNDECLARED = {torch.ops.aten.native_batch_norm.default: _STATISTICS}
"""Arguments that an operator writes although its schema does not say so."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Reads and writes of an operator."""

    names: tuple[str, ...]
    """Names of all arguments, in order."""
    written: frozenset[str]
    """Arguments that it writes."""
    returned: tuple[str | None, ...]
    """Per result, the written argument that it is; None: a new tensor."""
    is_view: bool
    """Whether its results share the memory of an argument, so that it computes nothing."""
    returns_values: bool
    """Whether a result is a number or a truth value, which the host waits for."""
    changes_shape: bool
    """Whether it changes the shape or the strides of its argument in place."""
    draws: bool
    """Whether it draws random numbers from a generator that its caller may give."""

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the given arguments by name."""
        return dict(zip(self.names, args, strict=False)) | dict(kwargs)


@cache
def signature_of(operator: torch._ops.OpOverload) -> Signature:
    """Returns the reads and writes of an operator."""
    schema = operator._schema
    written = {x.name: x.alias_info for x in schema.arguments if x.alias_info and x.alias_info.is_write}
    returned: list[str | None] = []
    is_view = False
    for result in schema.returns:
        alias = result.alias_info
        own = next((name for name, info in written.items() if alias and info.before_set & alias.before_set), None)
        returned.append(own)
        is_view = is_view or (alias is not None and own is None)
    return Signature(
        tuple(argument.name for argument in schema.arguments),
        frozenset(written) | frozenset(_UNDECLARED.get(operator, ())),
        tuple(returned),
        is_view,
        any("Tensor" not in str(result.type) for result in schema.returns),
        torch.Tag.inplace_view in operator.tags,
        any(argument.name == "generator" for argument in schema.arguments),
    )
