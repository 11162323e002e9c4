"""Models by name: the evaluation's own, and ``package.module:callable`` for the user's."""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.errors import CaptureError

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True, slots=True)
class Workload:
    """How to build a model, and what one of its samples looks like."""

    name: str
    build: Callable[[], "Module"]
    input_shape: tuple[int, ...]
    """Of one sample, used unless the user gives another."""


def _torchvision(name: str, input_shape: tuple[int, ...], **arguments: Any) -> Workload:
    def build() -> "Module":
        import torchvision

        model: Module = getattr(torchvision.models, name)(**arguments)
        return model

    return Workload(name, build, input_shape)


PICKLED = ".launched"

IMAGE = (3, 224, 224)
WORKLOADS = {
    workload.name: workload
    for workload in (
        _torchvision("vgg11", IMAGE),
        _torchvision("vgg16", IMAGE),
        _torchvision("wide_resnet101_2", IMAGE),
        # Its truncated-normal initialisation is slow, and torch's default trains as well.
        _torchvision("inception_v3", (3, 299, 299), init_weights=False),
        _torchvision("resnet18", IMAGE),
        _torchvision("resnet50", IMAGE),
        _torchvision("vit_b_16", IMAGE),
    )
}


def find_workload(reference: str) -> Workload:
    """A named workload, or the user's own by ``package.module:callable``.

    The callable takes no arguments and returns an ``nn.Module`` in the mode to train it in; its
    attribute ``input_shape``, where it has one, is the default shape. The current folder is importable.

    Raises:
        CaptureError: unknown name, or nothing importable there.
    """
    if reference in WORKLOADS:
        return WORKLOADS[reference]
    module_name, colon, attribute = reference.partition(":")
    if not colon:
        raise CaptureError(
            f"unknown model '{reference}': known are {', '.join(sorted(WORKLOADS))} "
            "(one of your own is package.module:callable)"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        build = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the user's module may raise anything
        raise CaptureError(
            f"cannot import model '{reference}': {error} (is {os.getcwd()} the folder that holds it?)"
        ) from error
    if not callable(build):
        raise CaptureError(f"model '{reference}' is a {type(build).__name__}, expected a callable without arguments")
    return Workload(reference, build, tuple(getattr(build, "input_shape", ())))


def build_model(reference: str, seed: int = 0) -> "Module":
    """The model, its weights drawn from ``seed``: every process that asks gets the same ones."""
    import torch

    workload = find_workload(reference)
    torch.manual_seed(seed)
    try:
        model = workload.build()
    except Exception as error:
        raise CaptureError(f"cannot build model '{reference}': {type(error).__name__}: {error}") from error
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"model '{reference}' returned a {type(model).__name__}, expected a torch.nn.Module")
    return model


def save_model(model: "Module", folder: str | os.PathLike[str]) -> str:
    """Hands a model object to the processes of this run; returns the reference that :func:`load_model` takes.

    Pickled with its code, so that models defined in a notebook arrive too. ``folder`` must be private to
    this process: whoever can write it can run code.
    """
    import cloudpickle

    path = Path(folder) / ("model" + PICKLED)
    path.write_bytes(cloudpickle.dumps(model))
    return str(path)


def load_model(reference: str, seed: int = 0) -> "Module":
    """Builds a model by name, or takes over one that the launcher of this very process saved."""
    if not reference.endswith(PICKLED):
        return build_model(reference, seed)
    import cloudpickle

    model: Module = cloudpickle.loads(Path(reference).read_bytes())
    return model
