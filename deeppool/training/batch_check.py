"""Check that the samples of a dataset fit the captured model and its loss."""

import torch

from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.mean_over_samples import IGNORED, ignores_labels


class BatchCheck:
    """Check of the shards that a rank reads, before a layer fails on them or counts them wrongly."""

    def __init__(self, captured: CapturedModel, global_batch: int) -> None:
        """Sets the model, whose inputs and target the samples must fit, and the samples of a batch on all ranks."""
        *inputs, target = (node for node in captured.program.graph.nodes if node.op == "placeholder")
        self._inputs = [(node.name, node.meta["val"]) for node in inputs]
        self._target = target.meta["val"]
        self._model, self._batch = captured.graph.model, global_batch
        self._ignores_labels = ignores_labels(captured.program.graph)

    def __call__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Checks inputs and targets of some samples of a batch.

        Raises:
            InvalidValueError: they do not fit, or the loss ignores some, so that its mean is not over the samples.
        """
        if len(tensors) != len(self._inputs) + 1:
            raise InvalidValueError(
                f"the dataset's items have {len(tensors)} parts, {self._model} takes {len(self._inputs)} and a target "
                "(several targets are one tensor, which the loss takes apart)"
            )
        *inputs, target = tensors
        for (name, expected), found in zip(self._inputs, inputs, strict=True):
            both_integers = not (expected.is_floating_point() or found.is_floating_point())
            if found.shape[1:] != expected.shape[1:] or not (both_integers or found.dtype == expected.dtype):
                raise InvalidValueError(
                    f"the dataset has {_kind(found)} as {name}, {self._model} was captured for {_kind(expected)} "
                    "(change the dataset, or input_shape and input_dtype)"
                )
        if target.shape[1:] != self._target.shape[1:] or target.dtype != self._target.dtype:
            raise InvalidValueError(
                f"the dataset has {_kind(target)} as target, the loss of {self._model} was captured for "
                f"{_kind(self._target)} (change the dataset, or give the job a loss that takes such targets)"
            )
        if self._ignores_labels and len(target) < self._batch and bool((target == IGNORED).any()):
            raise InvalidValueError(
                f"targets of the dataset are {IGNORED}, which the cross-entropy ignores: its mean over the others of "
                'each shard is not that of the batch (give the job a loss with reduction="none" that takes the mean of '
                "each sample and then of all)"
            )


def _kind(of: torch.Tensor) -> str:
    return f"shape {tuple(map(int, of.shape[1:]))} and {str(of.dtype).removeprefix('torch.')}"
