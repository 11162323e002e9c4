"""State that an optimizer keeps in its groups of parameters, beside the state of each parameter.

A schedule-free optimizer counts its steps there. An update in parts takes several steps: each starts with the values
that the first one found, so that the count goes on by one.

Other optimizers change a parameter by the gradients or the values of others: LAMB may clip by the norm of all (You et
al., "Large Batch Optimization for Deep Learning", ICLR 2020), and Prodigy sums its step size over them (Mishchenko and
Defazio, "Prodigy", ICML 2024). Before the first update in parts, a small copy of the optimizer makes updates in one
step and in two, which have to agree. It needs no gradient of the training, so that ranks with some parameters can do
it, too, and finds the same in a training that resumes, or whose first learning rate is 0. Refused, too, are optimizers
that draw random numbers, as replicas on other ranks would draw others, and those that cannot be tried: among them, in a
training that resumes, one whose constructor makes state that its steps join by state of other shapes.
"""

import copy
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from deeppool.errors import InvalidValueError
from deeppool.training.small_copy import small_copy

Values = list[dict[str, Any]]
"""Of each group, all but its parameters and their names."""
CHECKED = 2
"""Updates in which to look for values that steps change."""
TRIED = 3
"""Updates of a small copy: in the first one sums of distances from the first weights are zero."""


class StepsOfSome:
    """Steps of an optimizer of which each has the gradients of some parameters only."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, tried: bool = False) -> None:
        """Has made no update; ``tried``: whether steps are known to need no gradients of others."""
        self._optimizer = optimizer
        self._tried = tried
        self._before: Values = []
        """Values that the groups get before each step of the update."""
        self._after: Values = []
        """Values that the steps of the update have changed so far."""
        self._updates = 0
        self._names: set[str] = set()
        """Values that steps change."""

    def begin(self) -> None:
        """Begins an update by the values that the groups have.

        Raises:
            InvalidValueError: steps of some parameters together are not the step of all.
        """
        if not self._tried:
            _try_in_parts(self._optimizer)
            self._tried = True
        self._updates += 1
        if self._counts:
            self._before = group_values(self._optimizer)
            self._after = [{} for _ in self._before]

    def step(self, chosen: Collection[torch.nn.Parameter]) -> set[str]:
        """Makes a step of the update on some parameters; returns the names of the values that steps change.

        Args:
            chosen: the parameters; the optimizer and hooks on its steps see no others, as they may change those that
                have no gradient, too. An optimizer that keeps a list of its own sees no gradient of others.
        """
        if self._names:
            _reset(self._optimizer, self._before)
        with _only(self._optimizer, set(chosen)):
            self._optimizer.step()
        if self._counts:
            # A step may count in those groups only of which it has gradients.
            for after, old, new in zip(self._after, self._before, group_values(self._optimizer), strict=False):
                after.update({key: new[key] for key in changed_values([old], [new])})
                self._names.update(after)
            set_group_values(self._optimizer, self._after)
        return self._names

    @property
    def _counts(self) -> bool:
        """Whether steps change values, or may."""
        return bool(self._names) or self._updates <= CHECKED


def _try_in_parts(optimizer: torch.optim.Optimizer) -> None:
    """Raises an error if updates of the optimizer in two steps are others than in one, or cannot be tried."""
    name = type(optimizer).__name__
    try:
        fault = None
        if not _close(_tried(optimizer, in_parts=False), _tried(optimizer, in_parts=True)):
            fault = f"a step of {name} changes a parameter differently without the gradients of others, or by chance"
    except Exception as error:
        fault = f"whether a step of {name} needs all gradients cannot be tried ({type(error).__name__}: {error})"
    if fault is not None:
        raise InvalidValueError(
            f"{fault}, and here a step has the gradients of some (choose another optimizer, or a plan whose layers all "
            "have all GPUs and no gradient_sync)"
        )


@torch.no_grad()
def _tried(optimizer: torch.optim.Optimizer, *, in_parts: bool) -> list[Any]:
    """Returns what updates of a small copy make of it, each in one step or in two."""
    copied, parameters = small_copy(optimizer)
    steps = StepsOfSome(copied, tried=True)
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng({parameter.device for parameter in parameters if parameter.device.type == "cuda"}):
        for update in range(TRIED):
            steps.begin()
            # Each part has large gradients by turns, so that clipping by the norm of all changes the other one.
            gradients = [
                (torch.randn(each.shape, generator=generator) * scale).to(each.device, each.dtype)
                for each, scale in zip(parameters, itertools.cycle((100, 0.1) if update % 2 else (0.1, 100)))
            ]
            # The second one first, so that each draws other random numbers than in one step.
            for part in (slice(1, None, 2), slice(0, None, 2)) if in_parts else (slice(None),):
                for parameter, gradient in zip(parameters[part], gradients[part], strict=True):
                    parameter.grad = gradient
                steps.step(parameters[part])
                for parameter in parameters[part]:
                    parameter.grad = None
    numbers = [value for value in vars(copied).values() if isinstance(value, int | float | torch.Tensor)]
    state = [copied.state.get(parameter) for parameter in parameters]
    return [[parameter.detach() for parameter in parameters], state, group_values(copied), numbers]


def _reset(optimizer: torch.optim.Optimizer, before: Values) -> None:
    """Sets what groups hold, and removes what was added since."""
    for group, kept in zip(optimizer.param_groups, before, strict=False):
        for added in set(group).difference(kept, ("params", "param_names")):
            del group[added]
    set_group_values(optimizer, before)


@contextmanager
def _only(optimizer: torch.optim.Optimizer, chosen: set[torch.nn.Parameter]) -> Iterator[None]:
    """Leaves the groups some of their parameters for a while, and the others no gradient."""
    groups = optimizer.param_groups
    others = [(each, each.grad) for group in groups for each in group["params"] if each not in chosen]
    whole = [{key: list(group[key]) for key in ("params", "param_names") if key in group} for group in groups]
    try:
        for parameter, _ in others:
            parameter.grad = None
        for group, lists in zip(groups, whole, strict=True):
            kept = [parameter in chosen for parameter in lists["params"]]
            for key, values in lists.items():
                group[key][:] = itertools.compress(values, kept)
        yield
    finally:
        for parameter, gradient in others:
            parameter.grad = gradient
        # A group that a hook has added stays.
        for group, lists in zip(groups, whole, strict=False):
            for key, values in lists.items():
                group[key][:] = values


def group_values(optimizer: torch.optim.Optimizer) -> Values:
    """Returns a copy of what groups hold beside parameters."""
    return [
        {key: _copied(value) for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]


def set_group_values(optimizer: torch.optim.Optimizer, values: Values) -> None:
    """Sets what groups hold; a tensor stays the object that a schedule or a graph of the device knows."""
    # A group that was added since has no values.
    for group, kept in zip(optimizer.param_groups, values, strict=False):
        for key, value in kept.items():
            own = group.get(key)
            if isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor):
                own.copy_(value)
            else:
                group[key] = _copied(value)


def changed_since(before: Values, now: Values) -> Values:
    """Returns, of each group, the values that differ from earlier ones, and all that are tensors."""
    # A group that was added since has no earlier values.
    earlier = [*before, *({} for _ in now[len(before) :])]
    return [
        {
            key: value
            for key, value in new.items()
            if isinstance(value, torch.Tensor) or key not in old or not _equal(old[key], value)
        }
        for old, new in zip(earlier, now, strict=True)
    ]


def changed_values(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> set[str]:
    """Returns the names of values that differ in a group that was there before."""
    return {
        key
        for old, new in zip(before, after, strict=False)
        for key in new
        if key not in old or not _equal(old[key], new[key])
    }


def _close(one: Any, other: Any) -> bool:
    """Whether two results are equal up to rounding."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or torch.equal(one, other) or not (one.is_floating_point() or one.is_complex()):
            return torch.equal(one, other)
        rounding = 16 * torch.finfo(one.dtype).eps
        largest = float(one.abs().nan_to_num(posinf=0.0).max())
        return torch.allclose(one, other, rtol=rounding, atol=rounding * largest, equal_nan=True)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6) or (one != one and other != other)
    return type(one) is type(other) and (not isinstance(one, str) or one == other)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return copy.deepcopy(value) if isinstance(value, list | dict | set) else value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)
