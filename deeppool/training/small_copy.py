"""A small copy of an optimizer, whose steps change nothing of the optimizer itself."""

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

SIZE = 4
"""Elements of a small parameter in each dimension, at most."""
_HOOKS = {
    f"_optimizer_{of}_{when}_hooks" for of in ("step", "state_dict", "load_state_dict") for when in ("pre", "post")
}


def small_copy(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, list[torch.nn.Parameter]]:
    """Copies an optimizer without its hooks; returns the copy, and its parameters.

    For each number of dimensions, type and device, each group has two small parameters, which follow each other in the
    result. State of a parameter is copied where it has the parameter's shape; the copy makes other state anew. Its
    learning rate is not 0, as a schedule's first one may be.
    """
    generator = torch.Generator().manual_seed(0)
    memo: dict[int, Any] = {}
    small: dict[torch.Tensor, list[torch.nn.Parameter]] = {}
    changes: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        firsts: dict[Any, torch.nn.Parameter] = {}
        for parameter in group["params"]:
            first = firsts.setdefault((parameter.ndim, parameter.dtype, parameter.device), parameter)
            if first is parameter:
                shape = [min(size, SIZE) for size in parameter.shape]
                values = [
                    torch.randn(shape, generator=generator).to(parameter.device, parameter.dtype) for _ in range(2)
                ]
                small[parameter] = [torch.nn.Parameter(value) for value in values]
            memo[id(parameter)] = small[first][0]
        change: dict[str, Any] = {"params": [each for first in firsts.values() for each in small[first]]}
        if "param_names" in group:
            names = dict(zip(group["params"], group["param_names"], strict=True))
            change["param_names"] = [names[first] for first in firsts.values() for _ in small[first]]
        if isinstance(group.get("lr"), int | float | torch.Tensor):
            change["lr"] = group["lr"] * 0 + 0.01
        changes.append(change)
    copied = _copied(optimizer, small, memo)
    for group, change in zip(copied.param_groups, changes, strict=True):
        group.update(change)
    return copied, [each for pair in small.values() for each in pair]


def _copied(
    optimizer: torch.optim.Optimizer,
    small: Mapping[torch.Tensor, Sequence[torch.nn.Parameter]],
    memo: dict[int, Any],
) -> torch.optim.Optimizer:
    # deepcopy of an optimizer leaves out the attributes of its class, and copies the state of all parameters.
    memo[id(optimizer)] = made = object.__new__(type(optimizer))
    state: defaultdict[Any, Any] = defaultdict(dict)
    # Optimizers may keep state of no parameter in it, by names.
    known: Mapping[Any, Any] = optimizer.state
    memo[id(known)] = state
    for other in vars(optimizer).values():
        if isinstance(other, torch.optim.Optimizer) and id(other) not in memo:
            _copied(other, small, memo)
    for name, value in vars(optimizer).items():
        # A schedule sets a step of its own on the optimizer.
        if name != "step":
            vars(made)[name] = type(value)() if name in _HOOKS else copy.deepcopy(value, memo)
    for key, held in known.items():
        if not isinstance(key, torch.Tensor):
            state[key] = copy.deepcopy(held, memo)
        elif all(_has_shape(value, key.shape) for value in held.values()):
            state.update({each: {name: _cut(value) for name, value in held.items()} for each in small.get(key, ())})
    return made


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return value.shape in ((), shape) if isinstance(value, torch.Tensor) else isinstance(value, int | float | None)


def _cut(value: Any) -> Any:
    return value[tuple(slice(SIZE) for _ in value.shape)].clone() if isinstance(value, torch.Tensor) else value
