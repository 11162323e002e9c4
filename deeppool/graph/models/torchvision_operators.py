"""Lets torchvision's models import beside a torch whose build its compiled operators do not fit.

The registry's torchvision is compiled for CUDA. Beside a CPU build of torch its extension does not
load, and ``import torchvision`` then fails on two operators that no classifier calls, because their
schemas are unknown. pyproject.toml names :func:`define_missing` under torch's ``torch.backends``
entry points, so torch calls it at the end of its own import; where the builds fit, it does nothing.
"""

from importlib import metadata

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def define_missing() -> None:
    """Defines the schemas of ``torchvision::nms`` and ``qnms`` if torchvision cannot do it itself."""
    import torch

    try:
        built_for_cuda = "+cu" in metadata.version("torchvision") or "+cu" in _stated_version()
    except (metadata.PackageNotFoundError, OSError):
        return
    if torch.version.cuda is None and built_for_cuda:
        for name in ("nms", "qnms"):
            if hasattr(torch.ops.torchvision, name):
                continue
            torch.library.define(f"torchvision::{name}", SCHEMA)


def _stated_version() -> str:
    """The text of torchvision/version.py, which keeps the build's label that the registry strips."""
    for file in metadata.files("torchvision") or ():
        if str(file) == "torchvision/version.py":
            return file.read_text()
    return ""
