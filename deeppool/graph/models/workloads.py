"""Models by name: those of torchvision and transformers, and user models as ``package.module:callable``."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.base.pickling import load_pickled, save_pickled
from deeppool.errors import CaptureError
from deeppool.graph.layer import Input
from deeppool.graph.models.libraries import (
    torchvision_model,
    torchvision_names,
    transformers_model,
    transformers_names,
)
from deeppool.graph.models.torchvision_operators import define_missing_operators

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True, slots=True)
class Workload:
    """Builder of a named model, and its inputs."""

    name: str
    build: Callable[[], "Module"]
    inputs: tuple[Input, ...]
    """Default inputs; of shape () where the user must give one."""


PICKLED = ".launched"

CONFIGURATIONS: dict[str, tuple[str, dict[str, int]]] = {
    "bert_base": ("bert", {}),
    "bert_large": (
        "bert",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "gpt2_medium": ("gpt2", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "t5_small": ("t5", {}),
    "llama_1b": (
        "llama",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
        },
    ),
}
"""Published sizes of language models: the architecture, and what differs from its default."""


FAMILIES: dict[str, Callable[[], list[str]]] = {
    "image classifiers (torchvision)": torchvision_names,
    "language models of published sizes": lambda: list(CONFIGURATIONS),
    "language models (transformers, default sizes)": transformers_names,
}
"""All names that :func:`find_workload` accepts, in groups; a group's library is imported when it is listed."""


def find_workload(reference: str) -> Workload:
    """Finds a model by name, or the user's own by ``package.module:callable``.

    Names are those of torchvision's classifiers (``resnet50``), :data:`CONFIGURATIONS` (``bert_base``) and the
    architectures of transformers in their default size (``gpt2``).

    The callable takes no arguments and returns an ``nn.Module`` in the mode to train it in; its attributes
    ``input_shape`` and ``input_dtype``, if set, are passed to :func:`deeppool.capture` under these
    names. The current folder is importable.

    Raises:
        CaptureError: unknown name, or nothing importable there.
    """
    if ":" in reference:
        return _users_own(reference)
    if reference in CONFIGURATIONS:
        architecture, changes = CONFIGURATIONS[reference]
        return Workload(reference, *transformers_model(architecture, **changes))
    if reference in torchvision_names():
        return Workload(reference, *torchvision_model(reference))
    if reference in transformers_names():
        return Workload(reference, *transformers_model(reference))
    close = similar_names(reference) or sorted(CONFIGURATIONS)
    install = "" if transformers_names() else ", which is not installed: pip install 'deeppool[transformers]'"
    raise CaptureError(
        f"unknown model '{reference}': known are {', '.join(close)}, … (any classifier of torchvision or language "
        f"model of transformers by its name there{install}; one of your own is package.module:callable)"
    )


def check_buildable(model: str) -> None:
    """Checks that a process can make the model of a plan from its name, which may be that of a class of the user's.

    Raises:
        CaptureError: it cannot.
    """
    try:
        find_workload(model)
    except CaptureError as error:
        if ":" in model:
            raise
        raise CaptureError(
            f"{error}; if the plan is of a model that was given as an object, train it (deeppool train PLAN "
            "package.module:job), or profile the function that makes it, by package.module:callable"
        ) from error


def similar_names(reference: str) -> list[str]:
    """Returns names of models that an unknown name may have been meant for, the most similar first."""
    known = [name for names in FAMILIES.values() for name in names()]
    return [] if reference in known else difflib.get_close_matches(reference, known, n=5, cutoff=0.5)


def find_callable(reference: str, what: str) -> Any:
    """Imports what a user names by ``package.module:callable``; the current folder is importable.

    Args:
        reference: the name.
        what: what it makes, for errors: a model or a job.

    Raises:
        CaptureError: nothing importable there.
    """
    module, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        define_missing_operators()
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the user's module may raise anything
        hint = f"is {os.getcwd()} the folder that holds it?"
        if module.endswith(".py"):
            file = Path(module)
            hint = f"a module's name has no .py: {file.stem}:{attribute}"
            hint += "" if file.parent == Path() else f", in the folder {file.parent}"
        raise CaptureError(f"cannot import {what} '{reference}': {type(error).__name__}: {error} ({hint})") from error


def _users_own(reference: str) -> Workload:
    from deeppool.graph.inputs import resolve

    build = find_callable(reference, "model")
    if not callable(build):
        raise CaptureError(f"model '{reference}' is a {type(build).__name__}, expected a callable without arguments")
    shape, dtype = getattr(build, "input_shape", ()), getattr(build, "input_dtype", None)
    return Workload(reference, build, resolve((), reference, shape, dtype) if shape else ())


def build_model(reference: str, seed: int = 0) -> "Module":
    """Builds a model; its weights depend only on ``seed``, so all processes get the same ones."""
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
    """Saves a model object for the processes of this run; returns the reference for :func:`load_model`.

    It is pickled with its code, which includes models defined in a notebook. ``folder`` must be private to this
    process: write access to it allows running code.
    """
    name = "model" + PICKLED
    save_pickled(model, "the model", Path(folder) / name)
    return name


def load_model(reference: str, seed: int = 0, folder: str | os.PathLike[str] = ".") -> "Module":
    """Builds a model by name, or loads one that the launcher of this process saved in ``folder``."""
    if not reference.endswith(PICKLED):
        return build_model(reference, seed)
    define_missing_operators()
    model: Module = load_pickled(Path(folder) / reference)
    return model
