"""Defines the operators that torchvision lacks beside a CPU build of torch.

The registry's torchvision is compiled for CUDA. Beside a CPU build of torch its extension does not load, and
``import torchvision`` fails on two operators that no classifier calls, because their schemas are unknown. deeppool
calls :func:`define_missing_operators` before it imports torchvision or a user's code, and on ``import
deeppool.adapters``. Where the builds fit, it does nothing.
"""

from importlib import metadata

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def define_missing_operators() -> None:
    """Defines the schemas of ``torchvision::nms`` and ``qnms`` where torchvision cannot do it itself."""
    import torch

    try:
        built_for_cuda = "+cu" in metadata.version("torchvision") or "+cu" in _stated_version()
    except (metadata.PackageNotFoundError, OSError):
        return
    if torch.version.cuda is None and built_for_cuda:
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", SCHEMA)


def _stated_version() -> str:
    """Returns the text of torchvision/version.py, which keeps the build's label that the registry strips."""
    for file in metadata.files("torchvision") or ():
        if str(file) == "torchvision/version.py":
            return file.read_text()
    return ""
