"""Coverage of a model by its graph, counted against the model, and the warnings for the user."""

import pytest
import torch
from torch import nn

from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.coverage import coverage, structure
from tests.strategies import make_graph


class WithUnused(nn.Module):
    """A head that forward leaves out, a frozen stem, BatchNorm, and a layer that is tied to another."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.body = nn.Linear(8, 8, bias=False)
        self.again = nn.Linear(8, 8, bias=False)
        self.again.weight = self.body.weight
        self.head = nn.Linear(8, 3)
        self.auxiliary = nn.Linear(8, 100)

    def forward(self, x):
        x = self.norm(self.stem(x)).relu()
        return self.head(self.again(self.body(x).relu()))


def test_one_layer_is_in_the_singular():
    # Beside its own operator it has the loss.
    assert str(coverage(capture(nn.Linear(4, 4), (4,)))).startswith("1 layer (1 distinct) of 2 operators, ")


def test_parameters_are_counted_once_and_unused_ones_are_named():
    model = WithUnused()
    found = coverage(capture(model, (8,)))
    assert found.parameter_bytes == 4 * sum(x.numel() for x in model.parameters())
    assert found.frozen_bytes == 4 * (64 + 8)
    assert found.trained_bytes == 4 * (16 + 64 + 24 + 3)
    assert found.unread == ("auxiliary",)
    assert found.share == pytest.approx(1 - 4 * 900 / found.parameter_bytes)
    (warning,) = [sentence for sentence in found.warnings if "auxiliary" in sentence]
    assert "the loss needs no parameters of auxiliary: they get no gradient" in warning


def test_operators_are_those_of_all_layers():
    captured = capture(WithUnused(), (8,))
    found = coverage(captured)
    assert dict(found.operators)["linear"] == 4
    assert sum(count for _, count in found.operators) == sum(len(layer.operators) for layer in captured.graph.layers)
    assert str(found).startswith(f"{found.layers} layers ({found.distinct} distinct) of ")
    assert "frozen" in str(found)


def test_a_fully_covered_model_has_no_warning():
    found = coverage(capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), (8,)))
    assert (found.share, found.warnings, found.structure) == (1.0, (), "chain")
    assert "100 % of " in str(found)


class Encoder(nn.Module):
    """Dropout of modules, and inside fused attention and a GRU."""

    def __init__(self, attention, recurrent):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder.self_attn.dropout = attention
        self.gru, self.head = nn.GRU(8, 8, 2, dropout=recurrent, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.gru(self.encoder(x))[0][:, -1])


@pytest.mark.slow
@pytest.mark.parametrize(("attention", "recurrent", "layers"), [(0.0, 0.0, 0), (0.1, 0.0, 1), (0.1, 0.2, 2)])
def test_layers_whose_random_numbers_depend_on_the_plan_are_named(attention, recurrent, layers):
    found = [
        sentence for sentence in coverage(capture(Encoder(attention, recurrent), (2, 8))).warnings if "DDP" in sentence
    ]
    assert len(found) == bool(layers)
    if layers:
        assert found[0].startswith(f"{layers} layer")
        assert ("gru" in found[0]) == (layers == 2)
        assert "each GPU draws its own" in found[0]


def test_batch_norm_in_training_and_evaluation_mode_are_reported():
    (sentence,) = coverage(capture(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), (8,))).warnings
    assert sentence.startswith("1 layer with BatchNorm")
    assert "synchronise_batch_norm=True" in sentence
    still = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval()
    (sentence,) = coverage(capture(still, (8,))).warnings
    assert "evaluation mode" in sentence


class DenselyConnected(nn.Module):
    """Each layer reads all before it: no branches, but a non-series-parallel region."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        found = [x.relu()]
        for layer in self.layers:
            found.append(layer(torch.stack(found, dim=1).sum(1)))
        return self.head(torch.stack(found, dim=1).sum(1))


def test_regions_that_are_not_series_parallel_are_reported_with_their_ends():
    found = coverage(capture(DenselyConnected(), (8,)))
    assert found.structure.startswith("non-series-parallel region of ")
    (sentence,) = found.warnings
    assert "are not series-parallel" in sentence
    assert "granularity 'block'" in sentence


class Attention(nn.Module):
    """Products of attention have sequence or heads first, where samples cannot be separated."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = x.transpose(0, 1)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(0))


@pytest.mark.slow
def test_operators_that_cannot_be_separate_layers_are_reported():
    captured = capture(Attention(), (4, 8), granularity="operator")
    joined = [layer for layer in captured.graph.layers if len(layer.operators) > 1]
    assert joined
    (sentence,) = [sentence for sentence in coverage(captured).warnings if "several operators" in sentence]
    assert joined[0].name in sentence
    assert "several operators" not in " ".join(coverage(capture(Attention(), (4, 8))).warnings)


class SequenceFirst(nn.Module):
    """An encoder as torch builds it by default: steps of the sequence in dim 0, samples in dim 1."""

    def __init__(self, batch_first):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)
        self.batch_first = batch_first

    def forward(self, x):
        if self.batch_first:
            return self.head(self.encoder(x).mean(1))
        return self.head(self.encoder(x.transpose(0, 1)).mean(0))


@pytest.mark.slow
def test_modules_in_one_layer_because_the_batch_is_second_are_reported_with_what_to_do():
    first, second = (capture(SequenceFirst(batch_first), (4, 8)) for batch_first in (True, False))
    assert len(second.graph.layers) <= 2 < len(first.graph.layers) / 4
    (sentence,) = [sentence for sentence in coverage(second).warnings if "dim 1" in sentence]
    assert "modules (encoder.layers.0" in sentence
    assert "batch_first=True" in sentence
    assert "dim 1" not in " ".join(coverage(first).warnings)


@pytest.mark.parametrize(
    ("predecessors", "name"),
    [
        ([(), (0,), (1,)], "chain"),
        ([(), (0,), (0,), (1, 2)], "series-parallel"),
        ([(), (0,), (0, 1), (0, 1, 2), (1, 2, 3)], "non-series-parallel region of 3 layers"),
    ],
)
def test_the_structure_has_a_name(predecessors, name):
    assert structure(make_graph(predecessors)) == name


def test_a_capture_reports_its_progress():
    progress = []
    capture(nn.Linear(8, 2), (8,), on_progress=lambda what, share: progress.append((what, share)))
    shares = [share for _, share in progress]
    assert shares == sorted(shares)
    assert (progress[0][0], progress[-1]) == ("exporting Linear", ("captured Linear", 1.0))


def test_a_cancelled_capture_ends():
    class UnwantedError(Exception):
        pass

    def refuse(what, share):
        if share > 0.5:
            raise UnwantedError

    with pytest.raises(UnwantedError):
        capture(nn.Linear(8, 2), (8,), on_progress=refuse)
