"""Stages whose passes are graphs overlap their all-reduces with the backward pass as others do."""

import pytest
import torch
from torch import nn

from deeppool.collectives.buckets import Buckets
from deeppool.collectives.layout import Layout
from deeppool.collectives.schedule import Schedule
from deeppool.device.find import find_device
from deeppool.execution.communicator import CompletedWork, SingleRank
from deeppool.execution.gradient_sync import buckets_of_parts, make_buckets
from deeppool.execution.stages import Division, Stage, divided
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.placement import place_model
from deeppool.training.graph_replay import GraphReplay
from deeppool.training.training_job import Training

RANKS, BATCH, WIDTH, LAYERS = (0, 1), 4, 12, 5


class TwoEqualRanks(SingleRank):
    """Communicator of two ranks whose other rank contributes the same as this one; notes its all-reduces."""

    ranks = 2

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self._log = log

    def group(self, ranks: tuple[int, ...], *, schedules: bool = False) -> "TwoEqualRanks":
        return self

    def all_reduce(self, tensor: torch.Tensor, schedule: Schedule | None = None) -> CompletedWork:
        self._log.append(f"sum of {tensor.numel()}")
        tensor.mul_(2)
        return CompletedWork()


class Log:
    """Notes what a trainer begins."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def begin(self, kind: str, stage: int) -> None:
        if kind == "backward":
            self._log.append("backward")

    def end(self) -> None: ...


def trained(kind: str, division: Division | None, log: list[str]) -> tuple[Trainer, dict[str, torch.Tensor]]:
    """Trainer of one stage, and the gradients of an iteration."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    device = find_device(kind)
    captured = place_model(capture(model, (WIDTH,)), device.torch_device())
    stage = Stage("all", tuple(range(len(captured.graph.layers))), Layout(RANKS, BATCH))
    job = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1))
    two_gradients = Buckets(alone=None, size=2 * 4 * WIDTH**2)
    trainer = Trainer(
        captured, [stage], TwoEqualRanks(log), job, overlap_sync=True, buckets=two_gradients, divide_stages=division
    )
    trainer.watcher = Log(log)
    log.clear()
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (
        torch.randn(BATCH, WIDTH, generator=generator),
        torch.randint(WIDTH, (BATCH,), generator=generator),
    )
    data = inputs.to(device.torch_device()), targets.to(device.torch_device())
    trainer.gradients([lambda shard: tuple(tensor[shard.start : shard.stop] for tensor in data)])
    return trainer, {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("kind", ["emulated", "emulated:h200"])
def test_a_bucket_is_summed_before_the_next_graph_of_the_backward_is_launched(
    kind: str,
) -> None:
    log: list[str] = []
    trainer, found = trained(kind, "buckets", log)
    assert all(isinstance(run, GraphReplay) for run in trainer.step.passes)
    size = WIDTH**2
    assert log == ["backward", f"sum of {2 * size}", "backward", f"sum of {2 * size}", "backward", f"sum of {size}"]
    _, expected = trained("cpu", None, [])
    assert all(torch.equal(value, expected[name]) for name, value in found.items())


def test_buckets_are_those_of_the_whole_stage() -> None:
    """A small gradient shares a bucket with gradients of other parts, as the planner prices it."""
    first, large, last = (nn.Parameter(torch.zeros(size)) for size in (10, 200, 20))
    whole = make_buckets([{RANKS: [first, large, last]}], 0, Buckets(alone=400, size=1000))
    found = buckets_of_parts(whole, [{RANKS: [first]}, {RANKS: [large, last]}])
    assert [(bucket.part, bucket.parameters) for bucket in found] == [(1, (large,)), (0, (last, first))]


def test_a_stage_of_one_rank_is_not_divided_by_buckets() -> None:
    captured = capture(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))), (WIDTH,))
    layers = tuple(range(len(captured.graph.layers)))
    stages = [Stage("one", layers[:2], Layout((0,), BATCH)), Stage("both", layers[2:], Layout(RANKS, BATCH))]
    parts, stage_of = divided(captured, stages, "buckets", Buckets(alone=0))
    assert parts[0].layers == layers[:2]
    assert stage_of[0] == 0
    assert set(stage_of[1:]) == {1}
    assert [layer for part in parts[1:] for layer in part.layers] == list(layers[2:])
    assert len(parts) == 1 + LAYERS - 2


def test_a_stage_of_two_types_is_divided_where_the_buckets_of_each_are_complete() -> None:
    captured = capture(nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))), (WIDTH,))
    for number, parameter in enumerate(captured.program.parameters()):
        parameter.data = parameter.data.to((torch.float32, torch.bfloat16)[number % 2])
    stage = Stage("all", tuple(range(len(captured.graph.layers))), Layout(RANKS, BATCH))
    two_of_32_bits = Buckets(alone=None, size=2 * 4 * WIDTH**2)
    parts, _ = divided(captured, [stage], "buckets", two_of_32_bits)
    # Buckets are of layers 4 and 2, of layer 0, and of layers 3 and 1, whose type is half as large.
    assert [part.layers[0] for part in parts] == [0, 1, 2]
