"""Variables outside of modules that a forward names: globals, variables of closures, attributes of classes.

A forward reaches what its functions name, and the functions of the same packages that these name. What else is in their
files counts for nothing: another thread may change it, or another cell of a notebook.
"""

import dis
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, eq=False)
class Variables:
    """Some variables of one namespace."""

    read: Callable[[], dict[str, Any]]
    """Returns those that there are, and their values."""
    set: Callable[[str, Any], object]
    delete: Callable[[str], object]

    def __getitem__(self, name: str) -> Any:
        return self.read()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.set(name, value)


def package_of(kind: Any) -> str:
    """Returns the package of a class or a function."""
    return str(kind.__module__).partition(".")[0]


def variables_named_by(modules: Sequence[nn.Module], packages: Collection[str]) -> Iterator[tuple[str, Variables]]:
    """Yields the variables that the forwards of some modules name, each with the beginning of their names.

    Args:
        modules: the modules.
        packages: packages whose classes and functions count.
    """
    classes = dict.fromkeys(kind for module in modules for kind in type(module).__mro__ if package_of(kind) in packages)
    for kind in classes:
        changes = partial(setattr, kind), partial(delattr, kind)
        yield f"{kind.__module__}:{kind.__qualname__}.", Variables(partial(_attributes, kind), *changes)
    files = dict[int, tuple[FunctionType, set[str]]]()
    for function, used in _functions(modules, classes, packages):
        files.setdefault(id(function.__globals__), (function, set()))[1].update(used)
        if cells := _cells(function):
            changes = partial(_fill, cells), partial(_empty, cells)
            yield f"{function.__module__}:{function.__qualname__}.", Variables(partial(_contents, cells), *changes)
    for function, names in files.values():
        held = function.__globals__
        yield f"{function.__module__}:", Variables(partial(_some, held, names), held.__setitem__, held.__delitem__)


def _functions(
    modules: Sequence[nn.Module], classes: Iterable[type], packages: Collection[str]
) -> Iterator[tuple[FunctionType, set[str]]]:
    """Yields the functions that the forwards of some modules may call, and the globals that each names."""
    waiting: list[Any] = [vars(kind)["forward"] for kind in classes if "forward" in vars(kind)]
    for module in modules:
        waiting += [*vars(module).values(), *module._forward_pre_hooks.values(), *module._forward_hooks.values()]
    found = set[FunctionType]()
    for each in waiting:
        function = _function(each)
        if function is None or function in found or package_of(function) not in packages:
            continue
        found.add(function)
        used, attributes = _names(function.__code__)
        yield function, used
        waiting += (vars(kind)[name] for kind in classes for name in attributes & vars(kind).keys())
        waiting += _some(function.__globals__, used).values()
        waiting += _contents(_cells(function)).values()


def _function(value: Any) -> FunctionType | None:
    """Returns the Python function that is called as a method, a property or the like; None: there is none."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, partial | cached_property):
        value = value.func
    elif isinstance(value, MethodType | staticmethod | classmethod):
        value = value.__func__
    return value if isinstance(value, FunctionType) else None


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Returns the globals that code names, and the attributes; functions in it included."""
    used = {each.argval for each in dis.get_instructions(code) if each.opname.endswith("_GLOBAL")}
    attributes = {*code.co_names} - used
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names(constant)
            used, attributes = used | inner[0], attributes | inner[1]
    return used, attributes


def _attributes(kind: type) -> dict[str, Any]:
    """Returns the attributes of a class that are neither methods nor descriptors, nor Python's own."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("__") and not hasattr(type(value), "__get__")
    }


def _some(held: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: held[name] for name in names & held.keys()}


def _cells(function: FunctionType) -> dict[str, CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _contents(cells: dict[str, CellType]) -> dict[str, Any]:
    found = {}
    for name, cell in cells.items():
        with suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def _fill(cells: dict[str, CellType], name: str, value: Any) -> None:
    cells[name].cell_contents = value


def _empty(cells: dict[str, CellType], name: str) -> None:
    del cells[name].cell_contents
