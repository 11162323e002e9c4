"""Parameters of modules that something completes before code reads them, such as an update that is under way.

A module finds ``self.weight`` in its dictionary of parameters. One that calls back before it returns a value sees each
of these reads, also by other modules, and by a copy of the model. Lists of all parameters, such as
``model.parameters()``, do not read values: ``model.zero_grad()`` goes through one after every step.
"""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

Complete = Callable[[nn.Parameter], None]


class FreshParameters(dict[str, nn.Parameter | None]):
    """Parameters of one module by name."""

    def __init__(self, parameters: dict[str, nn.Parameter | None], complete: Complete) -> None:
        """Takes the parameters, and what is called with each that is read."""
        super().__init__(parameters)
        self._complete = complete

    def __getitem__(self, name: str) -> nn.Parameter | None:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._complete(parameter)
        return parameter

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the module trains by itself, from the values that are read here.
        return dict, ({name: self[name] for name in self},)


def read_fresh(modules: Iterable[nn.Module], complete: Complete) -> None:
    """Calls a function with each parameter of some modules before code reads it from its module."""
    for module in modules:
        module._parameters = FreshParameters(module._parameters, complete)


def read_plainly(modules: Iterable[nn.Module]) -> None:
    """Ends :func:`read_fresh`."""
    for module in modules:
        module._parameters = dict(module._parameters)
