"""Cutting a step into pieces: as few as fit the limit, and the same training, bit by bit."""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from deeppool.base.sharing import Sharing
from deeppool.collocation import pieces
from deeppool.collocation.pieces import LONG_PIECE_SECONDS, PIECE_SECONDS, group_layers, longest_piece, split_model
from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.device.protocol import Device
from deeppool.execution.communicator import SingleRank
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel, capture
from deeppool.graph.capture.placement import place_model
from deeppool.training.training_job import Training
from examples.two_branch import TwoBranch
from tests.execution.gradient_rank import Branches

SECONDS = st.integers(1, 10).map(float)
TIMES = st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=8)
BATCH = 6


def every_cut(count: int) -> Iterator[list[range]]:
    """All ways to cut layers in order into runs."""
    for size in range(count):
        for places in itertools.combinations(range(1, count), size):
            yield [range(start, stop) for start, stop in itertools.pairwise([0, *places, count])]


def fits(times: list[tuple[float, float]], run: range, limit: float) -> bool:
    return len(run) == 1 or all(sum(times[layer][part] for layer in run) <= limit for part in (0, 1))


@given(times=TIMES, limit=st.integers(1, 25).map(float))
def test_there_are_as_few_pieces_as_fit_the_limit(times: list[tuple[float, float]], limit: float) -> None:
    runs = group_layers(times, limit)
    assert [layer for run in runs for layer in run] == list(range(len(times)))
    assert all(fits(times, run, limit) for run in runs)
    fitting = [len(way) for way in every_cut(len(times)) if all(fits(times, run, limit) for run in way)]
    assert len(runs) == min(fitting)


@pytest.mark.parametrize(
    ("sharing", "limit"),
    [
        (Sharing(max_slowdown=0.01), LONG_PIECE_SECONDS),
        (Sharing(max_slowdown=0.01, home="process"), LONG_PIECE_SECONDS),
        (Sharing(max_slowdown=0.01, priority="normal"), PIECE_SECONDS),
        (Sharing(max_slowdown=0.01, share=0.5), PIECE_SECONDS),
        (Sharing(max_slowdown=0.01, feedback=0.1), PIECE_SECONDS),
        (Sharing(gaps_only=True), PIECE_SECONDS),
        (Sharing(pieces=2), PIECE_SECONDS),
    ],
)
def test_pieces_are_longer_where_the_foreground_does_not_wait_for_them(sharing: Sharing, limit: float) -> None:
    assert longest_piece(sharing, CpuDevice()) == limit


@cache
def captured_once(model: type[nn.Module]) -> CapturedModel:
    torch.manual_seed(0)
    return capture(model(), (3, 8, 8))


class Job:
    """A training on random samples; SGD with momentum, so that a wrong step shows in all that follow."""

    def __init__(self, model: type[nn.Module], device: Device) -> None:
        self.captured = place_model(captured_once(model).copy(), device.torch_device())
        self.model = self.captured.source
        generator = torch.Generator().manual_seed(1)
        self.images = torch.randn(BATCH, 3, 8, 8, generator=generator).to(device.torch_device())
        self.targets = torch.randint(10, (BATCH,), generator=generator).to(device.torch_device())

    def samples(self, chosen: range) -> tuple[torch.Tensor, ...]:
        return self.images[chosen.start : chosen.stop], self.targets[chosen.start : chosen.stop]

    def trainer(self, stages: Sequence[Stage]) -> Trainer:
        rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9))
        return Trainer(self.captured, stages, SingleRank(), rule)

    def uncut(self) -> tuple[Stage, ...]:
        return (pieces.stage_of(self.captured, range(len(self.captured.graph.layers)), BATCH),)

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cpu", "emulated", "emulated:h200"])
@pytest.mark.parametrize("model", [Branches, TwoBranch])
@pytest.mark.parametrize("limit", [1e-9, 1e-4, 1e9])
def test_a_step_in_pieces_is_the_uncut_step(model: type[nn.Module], limit: float, kind: str) -> None:
    device = find_device(kind)
    job, other = Job(model, device), Job(model, device)
    before, random = job.state(), torch.get_rng_state()
    stages = split_model(job.captured, BATCH, job.trainer, limit)
    if limit == 1e-9:
        assert len(stages) == len(job.captured.graph.layers)
    if limit == 1e9:
        assert len(stages) == 1
    # Measuring leaves no trace: no gradient, no statistics of BatchNorm, no random numbers drawn.
    assert all(torch.equal(value, before[name]) for name, value in job.state().items())
    assert all(parameter.grad is None for parameter in job.model.parameters())
    assert torch.equal(torch.get_rng_state(), random)

    cut_trainer, uncut_trainer = job.trainer(stages), other.trainer(other.uncut())
    for _ in range(3):
        assert cut_trainer.gradients([job.samples]) == uncut_trainer.gradients([other.samples])
        for mine, theirs in zip(job.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)
        cut_trainer.update.step()
        uncut_trainer.update.step()
    assert all(torch.equal(value, other.state()[name]) for name, value in job.state().items())
