"""Check of models whose forward changes values that its modules hold, and reads them again: counters, flags, lists.

A graph keeps what a forward read during the export. So where a forward has changed a value, or read a tensor that is
neither parameter nor buffer, a copy of the model runs several times on the same samples, which must give the same.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError

LATER = 1_000_001
"""Steps that are added to counters: a schedule of a model may do nothing in the first ones."""
STANDARD = vars(nn.Module()).keys()
"""What every module holds."""


@contextlib.contextmanager
def noting_changes(module: nn.Module, found: list[str]) -> Iterator[None]:
    """Appends the names of the values that a forward of the model changes, and puts these back.

    torch.export itself puts back those that there were before, and leaves others, which may be tensors without data.
    """
    before = {name: _values(each) for name, each in module.named_modules()}

    def compare(*_: Any) -> None:
        for name, each in module.named_modules():
            known, now = before.get(name, {}), _values(each)
            changed = [key for key in known.keys() | now.keys() if not _same(known.get(key), now.get(key))]
            found.extend(sorted(f"{name}.{key}" if name else key for key in changed))

    hook = module.register_forward_hook(compare)
    try:
        yield
    finally:
        hook.remove()
        for name, each in module.named_modules():
            for key in _values(each).keys() - before.get(name, {}).keys():
                vars(each).pop(key)


def _values(module: nn.Module) -> dict[str, Any]:
    """Returns what a module holds beside parameters, buffers, modules and hooks, with copies of containers."""
    held = ((key, value) for key, value in vars(module).items() if key not in STANDARD)
    return {key: copy.copy(value) if isinstance(value, list | dict | set) else value for key, value in held}


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one object, or containers and numbers that are equal."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other) if isinstance(one, int | float | str | set) else False


def check_repeats(module: nn.Module, suspects: Sequence[str], run: Callable[[nn.Module], Any], name: str) -> None:
    """Raises for a model that computes something else when it runs again.

    Args:
        module: the model.
        suspects: values of its modules, by name, that a forward changes, or constants of its graph that it may change.
        run: runs a model on the same samples each time.
        name: its name, for the error.
    """
    if not suspects or any(each.is_meta for each in module.parameters()):
        return
    try:
        copied = copy.deepcopy(module)
    except (RuntimeError, TypeError):
        # It holds what no other process could get either, such as a tensor with its graph of autograd.
        return
    state = {key: value.clone() for key, value in copied.state_dict().items()}
    first = _outputs(copied, run, name)
    for later in (0, LATER):
        copied.load_state_dict(state)
        for suspect in suspects:
            path, _, key = suspect.rpartition(".")
            holder = vars(copied.get_submodule(path))
            if type(holder.get(key)) in (int, float):
                holder[key] += later
        if not all(map(_equal, first, _outputs(copied, run, name))):
            raise CaptureError(
                f"{name} computes something else each time it runs, as its forward changes {', '.join(suspects[:3])}: "
                "a graph would keep the first value for ever (compute it from the inputs, or leave it as it is)"
            )


def _outputs(module: nn.Module, run: Callable[[nn.Module], Any], name: str) -> list[torch.Tensor]:
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(0)
        try:
            found = pytree.tree_leaves(run(module))
        except Exception as error:
            raise CaptureError(f"{name} fails on random samples: {str(error).strip().splitlines()[0]}") from error
    return [each.clone() for each in found if isinstance(each, torch.Tensor)]


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, equal_nan=True)
