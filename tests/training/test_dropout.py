"""Masks of dropout: random, the same for a sample whatever the plan, and drawn anew by each replay of a graph."""

import math

import pytest
import torch
from torch import nn

from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.extract import extract
from deeppool.graph.capture.placement import place_model
from deeppool.training.dropout import DropoutSeed, SampleDropout
from deeppool.training.graph_replay import GraphReplay
from deeppool.training.step import Part, TrainingStep
from deeppool.training.training_job import Training

ELEMENTS = 40_000
CPU = torch.device("cpu")


def masks(name: str = "dropout", *, samples: range = range(2), iteration: int = 0, rate: float = 0.3) -> torch.Tensor:
    draw = DropoutSeed(7, CPU)
    draw.begin(iteration)
    return SampleDropout(name, rate, draw, samples)(torch.ones(len(samples), ELEMENTS))


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5, 0.9])
def test_elements_are_zeroed_at_the_rate_and_the_others_scaled(rate: float) -> None:
    found = masks(rate=rate)
    kept = float((found != 0).double().mean())
    assert abs(kept - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / found.numel())
    torch.testing.assert_close(found.unique(), torch.tensor([0.0, 1 / (1 - rate)]))
    assert torch.equal(masks(rate=1.0), torch.zeros(2, ELEMENTS))


def test_masks_of_operators_samples_iterations_and_positions_are_uncorrelated() -> None:
    first, second = masks()
    others = [masks("other")[0], masks(iteration=1)[0], masks(iteration=2)[0]]
    rows = torch.stack([first, second, first.roll(1), first.roll(64), *others])
    correlations = torch.corrcoef(rows) - torch.eye(len(rows))
    assert float(correlations.abs().max()) < 5 / math.sqrt(ELEMENTS)


def test_a_sample_has_its_mask_in_any_shard() -> None:
    whole = masks(samples=range(5))
    assert torch.equal(torch.cat([masks(samples=range(2)), masks(samples=range(2, 5))]), whole)


def train(device: str) -> tuple[list[float], dict[str, torch.Tensor], bool]:
    torch.manual_seed(0)
    place = find_device(device).torch_device()
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 4))
    captured = place_model(capture(model, (6,)), place)
    part = Part("all", extract(captured, range(len(captured.graph.layers))), range(8), 8)
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1), seed=3)
    step = TrainingStep(captured, [part], rule, find_device(device))
    generator, losses = torch.Generator().manual_seed(1), []
    data = torch.randn(8, 6, generator=generator).to(place), torch.randint(4, (8,), generator=generator).to(place)
    for _ in range(4):
        step.compute([lambda samples: data])
        step.finish_sync()
        step.update()
        losses.append(step.loss())
    state = {name: value.cpu() for name, value in captured.source.state_dict().items()}
    return losses, state, all(isinstance(run, GraphReplay) for run in step.passes)


def test_a_training_with_dropout_is_replayed_as_graphs_and_gives_the_bits_of_the_cpu() -> None:
    losses, state, replayed = train("emulated")
    expected, expected_state, _ = train(CpuDevice.kind)
    assert replayed
    assert losses == expected
    assert len(set(losses)) == len(losses)
    assert all(torch.equal(value, expected_state[name]) for name, value in state.items())
