"""Check of models whose forward changes values that it reads again: counters, flags, lists.

They are held by modules, or by variables that a forward names (:mod:`deeppool.graph.capture.named_variables`).

A graph keeps what a forward read during the export. So where a forward has changed a value, or read a tensor that is
neither parameter nor buffer, the model runs several times on the same samples, which must give the same.
"""

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError
from deeppool.graph.capture.named_variables import Variables, package_of, variables_named_by

LATER = 1_000_001
"""Steps that are added to counters: a schedule of a model may do nothing in the first ones."""
STANDARD = vars(nn.Module()).keys() - {"training"}
"""What every module holds, but its mode."""
CONTAINERS = (dict, list, tuple, set, deque)
OPAQUE = (type, FunctionType, MethodType, ModuleType, torch.Tensor)
"""What has attributes that are no state of a model."""


class ChangedValue(NamedTuple):
    """An entry of what a module or a variable holds that a forward changes."""

    name: str
    """What the error calls it."""
    holder: str
    key: Any


class _Holder(NamedTuple):
    """A module, an object, a dict, a list, a set or variables, and what it held."""

    value: Any
    entries: dict[Any, Any]


@contextlib.contextmanager
def noting_changes(module: nn.Module, found: list[ChangedValue]) -> Iterator[None]:
    """Appends what a forward of the model changes of what its modules hold, and puts that back.

    torch.export itself puts back only attributes of modules that there were before; others may be tensors without data.
    """
    before = _holders(module)

    def compare(*_: Any) -> None:
        for name, (value, known) in before.items():
            now = _entries(value) or {}
            found.extend(
                ChangedValue(name if isinstance(value, CONTAINERS) else _name(name, value, key), name, key)
                for key in known.keys() | now.keys()
                if not _same(known.get(key), now.get(key))
            )
        found.sort(key=lambda change: change.name)

    hook = module.register_forward_hook(compare)
    try:
        yield
    finally:
        hook.remove()
        for holder in before.values():
            _put_back(*holder)


def _holders(module: nn.Module) -> dict[str, _Holder]:
    """Returns all modules, the variables that they name, and the containers and objects that these hold, by name.

    Objects count that are of the packages of the modules: others, such as loggers, are no state of the model alone.
    """
    waiting: list[tuple[str, Any]] = list(module.named_modules())
    packages = {package_of(type(each)) for _, each in waiting} - {"torch"}
    # Not those of this package, whose hooks follow the export.
    waiting += variables_named_by([*module.modules()], packages - {"deeppool"})
    packages.add("types")
    found, seen = dict[str, _Holder](), set[int]()
    for first_name, value in waiting:
        name = first_name
        if _has_attributes(value) and not isinstance(value, nn.Module) and package_of(type(value)) not in packages:
            continue
        entries = _entries(value)
        if entries is not None and id(value) not in seen:
            seen.add(id(value))
            while name in found:  # two functions of one name
                name += "'"
            found[name] = _Holder(value, entries)
            waiting += ((_name(name, value, key), entry) for key, entry in entries.items())
    return found


def _name(holder: str, value: Any, key: Any) -> str:
    if isinstance(value, Variables):
        return f"{holder}{key}"
    return f"{holder}.{key}".removeprefix(".") if _has_attributes(value) else f"{holder}[{key!r}]"


def _has_attributes(value: Any) -> bool:
    """Whether a value is a module, or an object such as a dataclass."""
    return hasattr(value, "__dict__") and not isinstance(value, (*CONTAINERS, *OPAQUE))


def _entries(value: Any) -> dict[Any, Any] | None:
    """Returns what is in a container, object or variables; of a module what is no parameter, buffer, module or hook."""
    if isinstance(value, Variables):
        return value.read()
    if isinstance(value, dict):
        # Past a subclass's own __getitem__: that of transformers' table of activations makes a new one at each call.
        return dict((OrderedDict if isinstance(value, OrderedDict) else dict).items(value))
    if isinstance(value, CONTAINERS):
        return dict.fromkeys(value) if isinstance(value, set) else dict(enumerate(value))
    standard = STANDARD if isinstance(value, nn.Module) else ()
    return {key: each for key, each in vars(value).items() if key not in standard} if _has_attributes(value) else None


def _put_back(value: Any, entries: dict[Any, Any]) -> None:
    now = _entries(value) or {}
    if now.keys() == entries.keys() and all(now[key] is entries[key] for key in now):
        return
    if isinstance(value, Variables):
        for key in now.keys() - entries.keys():
            value.delete(key)
        for key, entry in entries.items():
            if key not in now or now[key] is not entry:
                value[key] = entry
    elif _has_attributes(value):
        for key in now.keys() - entries.keys():
            vars(value).pop(key)
        vars(value).update(entries)
    elif isinstance(value, dict | set):
        value.clear()
        value.update(entries)
    else:
        value.clear()
        value.extend(entries.values())


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or containers and numbers that are equal."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) if isinstance(one, int | float | str | set) else False


def check_repeats(
    module: nn.Module, changes: Sequence[ChangedValue], held: Sequence[str], run: Callable[[], Any], name: str
) -> None:
    """Raises for a model that computes something else when it runs again, or leaves other buffers.

    Args:
        module: the model.
        changes: what a forward changes.
        held: names of constants of its graph that a forward may change.
        run: runs the model on the same samples each time.
        name: its name, for the error.
    """
    suspects = list(dict.fromkeys([*(change.name for change in changes), *held]))
    if not suspects or any(each.is_meta for each in module.parameters()):
        return
    with noting_changes(module, []):
        first = _outputs(module, run, name)
        for later in (0, LATER):
            holders = _holders(module)
            for change in changes:
                value, entries = holders.get(change.holder, (None, {}))
                if type(entries.get(change.key)) in (int, float):
                    writable: Any = vars(value) if _has_attributes(value) else value
                    writable[change.key] += later
            if not all(map(_equal, first, _outputs(module, run, name))):
                raise CaptureError(
                    f"{name} computes something else each time it runs, as its forward changes "
                    f"{', '.join(suspects[:3])}: a graph would keep the first value for ever (compute it from the "
                    "inputs, or leave it as it is)"
                )


def _outputs(module: nn.Module, run: Callable[[], Any], name: str) -> list[torch.Tensor]:
    """Returns what a model computes and the buffers that it leaves; puts these back."""
    held = [(each._buffers, dict(each._buffers)) for each in module.modules()]
    before = [(each, each.clone()) for each in (*module.parameters(), *module.buffers())]
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(0)
        try:
            found = [*pytree.tree_leaves(run()), *module.buffers()]
            return [each.clone() for each in found if isinstance(each, torch.Tensor)]
        except Exception as error:
            raise CaptureError(f"{name} fails on random samples: {str(error).strip().splitlines()[0]}") from error
        finally:
            for buffers, entries in held:
                buffers.update(entries)
            for tensor, value in before:
                tensor.copy_(value)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, equal_nan=True)
