"""Masks of dropout: random, the same for a sample whatever the plan, and drawn anew by each replay of a graph."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.graph.capture.capture import CapturedModel, capture
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


class Dropped(nn.Module):
    """Scores of samples after a dropout in some function of (samples, 5 tokens, 8 features)."""

    def __init__(self, function):
        super().__init__()
        self.body, self.function, self.head = nn.Linear(8, 8), function, nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).sin().reshape(8, 8))
        self.scale = nn.Parameter(torch.ones(()))
        # Fused attention draws its masks on each rank.
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5)
        self.encoder.self_attn.dropout = 0.0
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5)

    def forward(self, x):
        return self.head(self.function(self, self.body(x)).mean(1))


def attended(model, y):
    """Attention by products, whose matrix has samples and heads in one dimension."""
    z = y.transpose(0, 1)
    return model.attention(z, z, z, need_weights=True)[0].transpose(0, 1)


FUNCTIONS = {
    "samples second": lambda _, y: F.dropout(y.transpose(0, 1), 0.5).transpose(0, 1),
    "samples last": lambda _, y: F.dropout(y.permute(1, 2, 0), 0.5).permute(2, 0, 1),
    "tokens by samples": lambda _, y: (
        F.dropout(y.transpose(0, 1).flatten(0, 1), 0.5).unflatten(0, (5, -1)).transpose(0, 1)
    ),
    "encoder": lambda model, y: model.encoder(y.transpose(0, 1)).transpose(0, 1),
    "attention": attended,
    "weight": lambda model, y: y @ F.dropout(model.weight, 0.5),
    "one number": lambda model, y: y * (1 + F.dropout(model.scale, 0.5)),
    "channels": lambda _, y: F.dropout1d(y, 0.5),
    "samples as channels": lambda _, y: F.dropout1d(y.transpose(0, 1), 0.5).transpose(0, 1),
    "channels of all samples": lambda _, y: F.dropout1d(y.permute(1, 2, 0), 0.5).permute(2, 0, 1),
    "alpha": lambda _, y: F.alpha_dropout(y.transpose(0, 1), 0.5, training=True).transpose(0, 1),
    "alpha of channels": lambda _, y: F.feature_alpha_dropout(y, 0.5, training=True),
}


def gradients(captured: CapturedModel, samples: range) -> dict[str, torch.Tensor]:
    """Returns the part of some samples in the gradients of a batch of seven."""
    captured = captured.copy()
    part = Part("all", extract(captured, range(len(captured.graph.layers))), samples, 7)
    rule = Training(optimizer=lambda named: torch.optim.SGD(named, lr=0.1), seed=3)
    step = TrainingStep(captured, [part], rule, find_device("cpu"))
    generator = torch.Generator().manual_seed(1)
    x, target = torch.randn(7, 5, 8, generator=generator), torch.randint(4, (7,), generator=generator)
    step.compute([lambda positions: (x[positions.start : positions.stop], target[positions.start : positions.stop])])
    return {name: p.grad for name, p in captured.source.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_shards_have_the_gradients_of_the_batch_wherever_samples_are_counted(kind: str) -> None:
    torch.manual_seed(0)
    captured = capture(Dropped(FUNCTIONS[kind]), (5, 8))
    whole, first, second = (gradients(captured, samples) for samples in (range(7), range(3), range(3, 7)))
    assert whole
    for name, gradient in whole.items():
        torch.testing.assert_close(first[name] + second[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"])
def test_each_kind_drops_shares_of_the_size_that_torch_drops(name: str) -> None:
    x, kind = torch.full((200, 50, 4), 2.0), getattr(torch.ops.aten, name).default
    found = SampleDropout(name, 0.3, DropoutSeed(7, CPU), range(200), kind=kind)(x)
    torch.manual_seed(0)
    expected = kind(x, 0.3, True)
    torch.testing.assert_close(found.unique(), expected.unique())
    assert torch.equal((found == found[..., :1]).all(), (expected == expected[..., :1]).all())
    assert abs(float(found.mean() - expected.mean())) < 0.1


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
