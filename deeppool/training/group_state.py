"""State that an optimizer keeps in its groups of parameters, beside the state of each parameter.

A schedule-free optimizer counts its steps there. An update in parts takes several steps: each starts with the values
that the first one found, so that the count goes on by one. Others sum numbers there over the gradients of all
parameters, as Prodigy does for its step size (Mishchenko and Defazio, "Prodigy", ICML 2024): a step of some parameters
finds another number. The two differ in a step without gradients, which goes on counting; what else it does is undone.
"""

import copy
import inspect
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from deeppool.errors import InvalidValueError

Values = list[dict[str, Any]]
"""Of each group, all but its parameters and their names."""
CHECKED = 2
"""Updates to check: in the first one sums of distances from the first weights are zero."""


class StepsOfSome:
    """Steps of an optimizer of which each has the gradients of some parameters only."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Has checked no update."""
        self._optimizer = optimizer
        self._before: Values = []
        """Values that the groups get before each step of the update."""
        self._updates = 0
        self._names: set[str] = set()
        """Values that steps change."""

    def begin(self) -> None:
        """Begins an update by the values that the groups have."""
        self._updates += 1
        if self._names or self._updates <= CHECKED:
            self._before = group_values(self._optimizer)

    def step(self, chosen: Collection[torch.nn.Parameter]) -> set[str]:
        """Makes a step of the update on some parameters; returns the names of the values that steps change.

        Args:
            chosen: the parameters; the optimizer and hooks on its steps see no others, as they may change those that
                have no gradient, too.

        Raises:
            InvalidValueError: it changes a value of a group by the gradients, or adds one.
        """
        if self._names:
            set_group_values(self._optimizer, self._before)
        with _only(self._optimizer, set(chosen)):
            self._optimizer.step()
        if self._updates > CHECKED:
            return self._names
        after = group_values(self._optimizer)
        self._names |= changed_values(self._before, after)
        if self._names:
            self._check(after, set(chosen))
        return self._names

    def _check(self, after: Values, chosen: set[torch.nn.Parameter]) -> None:
        parameters = [each for group in self._optimizer.param_groups for each in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        set_group_values(self._optimizer, self._before)
        # The class's own function: hooks of the user count steps, too.
        with torch.no_grad(), _only(self._optimizer, chosen), _restored(self._optimizer, chosen):
            inspect.unwrap(type(self._optimizer).step)(self._optimizer)
        counted = group_values(self._optimizer)
        set_group_values(self._optimizer, after)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if found := changed_values(counted, after):
            name = min(found)
            does = f"adds '{name}' to its groups"
            if any(name in group for group in self._before):
                does = f"computes '{name}' from the gradients of all parameters"
            raise InvalidValueError(
                f"a step of {type(self._optimizer).__name__} {does}, and here a step has the gradients of some (choose "
                "another optimizer, or a plan whose layers all have all GPUs and no gradient_sync)"
            )


@contextmanager
def _only(optimizer: torch.optim.Optimizer, chosen: set[torch.nn.Parameter]) -> Iterator[None]:
    """Leaves the groups some of their parameters for a while."""
    groups = optimizer.param_groups
    whole = [{key: list(group[key]) for key in ("params", "param_names") if key in group} for group in groups]
    try:
        for group, lists in zip(groups, whole, strict=True):
            kept = [parameter in chosen for parameter in lists["params"]]
            for key, values in lists.items():
                group[key][:] = itertools.compress(values, kept)
        yield
    finally:
        # A group that a hook has added stays.
        for group, lists in zip(groups, whole, strict=False):
            for key, values in lists.items():
                group[key][:] = values


@contextmanager
def _restored(optimizer: torch.optim.Optimizer, chosen: set[torch.nn.Parameter]) -> Iterator[None]:
    """Restores some parameters and their state: a step may change those that have no gradient."""
    values = [(parameter, parameter.detach().clone()) for parameter in chosen]
    known = set(optimizer.state)
    owners = [
        key
        for key, held in optimizer.state.items()
        if isinstance(held, dict) and (key in chosen or not isinstance(key, torch.nn.Parameter))
    ]
    kept = {key: {name: _copied(value) for name, value in optimizer.state[key].items()} for key in owners}
    try:
        yield
    finally:
        for parameter, value in values:
            parameter.copy_(value)
        for parameter in chosen - known:
            optimizer.state.pop(parameter, None)
        for key, state in kept.items():
            own = optimizer.state[key]
            for name in set(own) - set(state):
                del own[name]
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and isinstance(own.get(name), torch.Tensor):
                    own[name].copy_(value)
                else:
                    own[name] = value


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


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return copy.deepcopy(value) if isinstance(value, list | dict | set) else value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return one is other or bool(one == other)
