"""Check of code that runs what torch.export loses: autograd functions, gradients, hooks on them, set attributes.

Autograd then derives the traced forward, which is right for a function that only saves memory and for a hook that only
observes, and wrong for one that computes another gradient, such as a straight-through estimate. Such code runs once, as
it is and as exported.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError

GRADIENTS = "torch.autograd.grad"
TOLERANCE = 1e-3
"""Relative difference of gradients that rounding explains, in 16 bits too."""


@contextlib.contextmanager
def lost_backwards() -> Iterator[list[str]]:
    """Yields what runs of which torch.export loses the backward: functions, hooks, gradients, modes, setters."""
    names: list[str] = []
    original, registered = vars(torch.autograd.Function)["apply"], torch.Tensor.register_hook
    differentiate, entered = torch.autograd.grad, torch.inference_mode.__enter__
    own_freeze = torch.Tensor.requires_grad_

    def apply(function: type, *args: Any, **kwargs: Any) -> Any:
        # torch makes one for each custom operator, which export keeps.
        if not function.__name__.startswith("GeneratedBackwardFor_"):
            names.append(f"{function.__name__}, a torch.autograd.Function whose backward")
        return original.__get__(None, function)(*args, **kwargs)

    def register_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Any:
        names.append("Tensor.register_hook, whose hook")
        return registered(tensor, hook)  # type: ignore[no-untyped-call]  # of torch

    def grad(*args: Any, **kwargs: Any) -> Any:
        names.append(f"{GRADIENTS}, whose graph")
        return differentiate(*args, **kwargs)

    def enter(mode: torch.inference_mode) -> None:
        if mode.mode:
            names.append("torch.inference_mode (torch.no_grad it keeps), which")
        entered(mode)

    def set_attribute(tensor: torch.Tensor, key: str, value: Any) -> None:
        # Export gives its own tensors gradients, and takes none.
        if key == "data" or (key == "requires_grad" and tensor.requires_grad and not value):
            names.append(f"an assignment of Tensor.{key}, which")
        object.__setattr__(tensor, key, value)

    def freeze(tensor: torch.Tensor, requires_grad: bool = True) -> torch.Tensor:
        if tensor.requires_grad and not requires_grad:
            names.append("Tensor.requires_grad_(False), which")
        return own_freeze(tensor, requires_grad)

    torch.Tensor.__setattr__ = set_attribute  # type: ignore[assignment, method-assign]
    torch.Tensor.requires_grad_ = freeze  # type: ignore[assignment, method-assign]
    torch.autograd.grad = grad
    torch.inference_mode.__enter__ = enter  # type: ignore[method-assign]
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
    try:
        yield names
    finally:
        del torch.Tensor.__setattr__, torch.Tensor.requires_grad_
        torch.autograd.grad = differentiate
        torch.inference_mode.__enter__ = entered  # type: ignore[method-assign]
        torch.autograd.Function.apply = original  # type: ignore[method-assign]
        torch.Tensor.register_hook = registered  # type: ignore[method-assign]


def check_gradients(
    what: str,
    lost: Sequence[str],
    own: Callable[[], Any],
    exported: Callable[[], Any],
    parameters: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor] = (),
) -> None:
    """Raises if exported code has other gradients than its source, or leaves other buffers.

    Args:
        what: name of the code, for errors.
        lost: what it runs, of :func:`lost_backwards`.
        own: runs the source.
        exported: runs the exported code on the same data.
        parameters: tensors to differentiate by, if they require gradients.
        buffers: tensors that a run may change, which are put back.
    """
    try:
        found, expected = (_results(run, parameters, buffers) for run in (exported, own))
        same = all((one - two).norm() <= TOLERANCE * two.norm() for one, two in zip(found, expected, strict=True))
    except RuntimeError:
        # torch.utils.checkpoint with use_reentrant=True takes no torch.autograd.grad.
        same = False
    if not same:
        raise CaptureError(
            f"{what} runs {lost[0]} torch.export loses: its gradients or buffers would differ (write it by operators: "
            "x + (f(x) - x).detach() passes gradients on; torch.utils.checkpoint needs use_reentrant=False)"
        )


def _results(
    run: Callable[[], Any], parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Returns what a run changes: gradients, buffers and which parameters are trained; puts these back."""
    before, trained = [buffer.clone() for buffer in buffers], [each.requires_grad for each in parameters]
    try:
        gradients = _gradients(run, [each for each in parameters if each.requires_grad])
        left = torch.tensor([each.requires_grad for each in parameters])
        return [gradients, *(each.to(torch.complex64, copy=True) for each in (left, *buffers))]
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)
        for parameter, trains in zip(parameters, trained, strict=True):
            parameter.requires_grad_(trains)


def _gradients(run: Callable[[], Any], leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the gradients of the squares of all outputs, one after the other; zeros where none arrives."""
    device = leaves[0].device if leaves else torch.device("cpu")
    # The model lies where its user put it, also on a device that this package does not know.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        torch.manual_seed(0)
        outputs = [x for x in pytree.tree_leaves(run()) if isinstance(x, torch.Tensor) and x.requires_grad]
        total = sum(x.abs().square().mean() for x in outputs)
    if not outputs or not leaves:
        return torch.zeros(sum(leaf.numel() for leaf in leaves), device=device)
    found = torch.autograd.grad(total, list(leaves), allow_unused=True)  # type: ignore[arg-type]
    pairs = zip(leaves, found, strict=True)
    return torch.cat([(torch.zeros_like(leaf) if x is None else x).flatten().float() for leaf, x in pairs])
