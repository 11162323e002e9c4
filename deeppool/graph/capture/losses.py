"""Default losses that capture appends to a model: means over the samples."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

AUXILIARY_WEIGHTS = {"aux_logits": 0.4, "aux_logits1": 0.3, "aux_logits2": 0.3}
"""Weights of the auxiliary heads: 0.4 in Inception-v3 (torchvision's reference training), 0.3 in GoogLeNet's paper."""


def main_output(outputs: Any) -> "Tensor":
    """Returns the tensor of class scores: the output itself, its ``logits``, or the first output."""
    if hasattr(outputs, "logits"):
        outputs = outputs.logits
    elif isinstance(outputs, Mapping):
        outputs = outputs["logits"] if "logits" in outputs else next(iter(outputs.values()))
    while isinstance(outputs, tuple | list):
        outputs = outputs[0]
    tensor: Tensor = outputs
    return tensor


def classification_loss(outputs: Any, target: "Tensor") -> "Tensor":
    """Computes the mean cross-entropy of class scores (dim 1), plus weighted auxiliary heads.

    Args:
        outputs: scores of shape (batch, classes, …), or a record with ``logits`` and auxiliary logits.
        target: class indices of shape (batch, …).
    """
    from torch.nn.functional import cross_entropy

    loss = cross_entropy(main_output(outputs), target)
    for name, weight in AUXILIARY_WEIGHTS.items():
        auxiliary = getattr(outputs, name, None)
        if auxiliary is not None:
            loss = loss + weight * cross_entropy(auxiliary, target)
    return loss


def token_loss(outputs: Any, target: "Tensor") -> "Tensor":
    """Computes the mean cross-entropy of a language model over all positions of all samples.

    Args:
        outputs: scores of shape (batch, positions, classes), or a record with ``logits``.
        target: class indices of shape (batch, positions).
    """
    from torch.nn.functional import cross_entropy

    return cross_entropy(main_output(outputs).flatten(0, -2), target.flatten())
