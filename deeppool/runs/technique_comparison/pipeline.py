"""Partitions of a model as stages of torch.distributed.pipelining: the baseline of partitions that rotate."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.losses import classification_loss
from deeppool.graph.layer import LayerGraph
from deeppool.runs.technique_comparison.steps import Steps
from deeppool.training.training_job import TrainingJob


class PipelineSteps(Steps):
    """One stage of a pipeline of torch."""

    def __init__(
        self,
        job: TrainingJob,
        captured: CapturedModel,
        parts: Sequence[Sequence[int]],
        micro_batches: int,
        read: Callable[[], tuple[torch.Tensor, ...]],
        place: torch.device,
        *,
        schedule: str = "1F1B",
    ) -> None:
        """Traces the model, and makes this rank's stage; every rank calls it.

        Args:
            job: its loss and optimizer.
            captured: this way's own model.
            parts: layers of each rank's stage.
            micro_batches: parts of a batch, of equal size.
            read: reads all samples of the next batch.
            place: device of this rank.
            schedule: name of the order of micro-batches, such as ``GPipe``.
        """
        from torch.distributed.pipelining import SplitPoint, pipeline
        from torch.distributed.pipelining.schedules import get_schedule_class

        self._rank, self._ranks, self._read = dist.get_rank(), dist.get_world_size(), read
        *inputs, _ = read()
        with warnings.catch_warnings():
            # Of torch's own calls.
            warnings.simplefilter("ignore", FutureWarning)
            stages = pipeline(
                captured.source,
                mb_args=tuple(value[: len(value) // micro_batches] for value in inputs),
                split_spec=dict.fromkeys(splits(captured.graph, captured.source, parts), SplitPoint.BEGINNING),
            )
        stage = stages.build_stage(self._rank, place)
        make: Any = get_schedule_class(schedule)
        self._schedule = make(stage, micro_batches, loss_fn=job.loss or classification_loss)
        self._optimizer = job.optimizer(
            [(name, value) for name, value in stage.submod.named_parameters() if value.requires_grad]
        )

    def step(self) -> None:
        """Makes an update."""
        *inputs, target = self._read()
        if self._rank == 0:
            self._schedule.step(*inputs)
        elif self._rank == self._ranks - 1:
            self._schedule.step(target=target, losses=[])
        else:
            self._schedule.step()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def splits(graph: LayerGraph, model: nn.Module, parts: Sequence[Sequence[int]]) -> list[str]:
    """Returns the modules at which all partitions but the first begin, as torch divides a model at modules only.

    Raises:
        InvalidValueError: a partition in which no module begins.
    """
    modules = {name for name, _ in model.named_modules()}
    found = []
    for number, part in enumerate(parts[1:], start=1):
        name = next((graph.layers[layer].name for layer in part if graph.layers[layer].name in modules), None)
        if name is None:
            raise InvalidValueError(
                f"in partition {number} of {graph.model} no module begins, at which torch divides it"
            )
        found.append(name)
    return found
