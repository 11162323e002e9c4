"""Activations that a layer saves for its backward: by hand, and against what autograd holds."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from deeppool.graph.capture.activation_memory import PRIME_BATCH
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.losses import classification_loss

FLOAT = 4


def held_by_autograd(model, outputs):
    """Bytes of distinct memory that autograd saves while ``outputs()`` runs; parameters and buffers not counted."""
    permanent = {value.untyped_storage()._cdata for value in (*model.parameters(), *model.buffers())}
    held, alive = {}, []

    def save(tensor):
        alive.append(tensor)
        held[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()

    with torch.autograd.graph.saved_tensors_hooks(save, lambda kept: kept):
        outputs()
    alive.clear()
    return sum(size for address, size in held.items() if address not in permanent)


def image_model(name, **arguments):
    import torchvision

    return getattr(torchvision.models, name)(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        pytest.param("vgg16", {}, (3, 32, 32), marks=pytest.mark.stress),
        ("squeezenet1_1", {}, (3, 64, 64)),
        pytest.param("resnet50", {}, (3, 64, 64), marks=pytest.mark.stress),
        pytest.param("wide_resnet101_2", {}, (3, 64, 64), marks=pytest.mark.stress),
        ("mobilenet_v3_small", {}, (3, 64, 64)),
        pytest.param("densenet121", {}, (3, 64, 64), marks=pytest.mark.stress),
        pytest.param("vit_b_16", {"image_size": 64}, (3, 64, 64), marks=pytest.mark.stress),
        pytest.param("inception_v3", {"init_weights": False}, (3, 299, 299), marks=pytest.mark.stress),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_activation_memory_of_a_model_equals_what_autograd_saves(name, arguments, shape):
    model = image_model(name, **arguments)
    layers = capture(model, shape).graph.layers
    batch = 4
    data, target = torch.randn(batch, *shape), torch.zeros(batch, dtype=torch.int64)
    # The original, with its in-place activations. What it holds beside the samples (the statistics of a
    # normalisation, say) is small, and smaller on larger images.
    held = held_by_autograd(model, lambda: classification_loss(model(data), target))
    assert sum(layer.activation_bytes for layer in layers) * batch == pytest.approx(held, rel=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        held = held_by_autograd(model, lambda: classification_loss(model(data), target))
    copies = sum(2 * parameter.numel() for parameter in model.parameters())
    predicted = sum(layer.autocast_activation_bytes for layer in layers) * batch + copies
    assert predicted == pytest.approx(held, rel=0.02)


class Chain(nn.Module):
    def __init__(self, in_place=False):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=in_place)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(8, 4, 1)
        self.score = nn.Linear(4 * 4 * 4, 10)

    def forward(self, x):
        x = self.pool(self.relu(self.norm(self.first(x))))
        return self.score(torch.flatten(self.second(x), 1))


def test_a_captured_model_can_be_garbage_collected():
    model = Chain()
    weight = weakref.ref(model.first.weight)
    captured = capture(model, (3, 8, 8))
    assert weight() is not None
    del model, captured
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("in_place", [False, True])
def test_each_value_counts_once_where_it_was_made(in_place):
    """8 x 8 images of 3 channels, by hand, in floats.

    first: the data (3 x 64, saved by the convolution), its result (8 x 64, saved by the normalisation), the
    activation (8 x 64, saved by itself and by the pooling; the normalised values are not saved).
    pool: its result (8 x 16, saved by the second convolution) and 8-byte indices of the same number.
    second: its result (4 x 16, saved by the linear layer through a view).
    score and loss: the scores' logarithms of probabilities (10), the target (8 bytes).
    """
    layers = capture(Chain(in_place), (3, 8, 8)).graph.layers
    assert [(layer.name, layer.activation_bytes) for layer in layers] == [
        ("first", FLOAT * (3 * 64 + 8 * 64 + 8 * 64)),
        ("pool", FLOAT * 8 * 16 + 8 * 8 * 16),
        ("second", FLOAT * 4 * 16),
        ("score", FLOAT * 10 + 8),
    ]


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.branch = nn.Conv2d(8, 8, 1)
        self.score = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = self.stem(x)
        return self.score(torch.flatten(functional.relu(x + self.branch(x)), 1))


def test_a_sum_saves_nothing_and_a_value_read_twice_counts_once():
    layers = {layer.name: layer.activation_bytes for layer in capture(Residual(), (3, 4, 4)).graph.layers}
    assert layers["stem"] == FLOAT * (3 * 16 + 8 * 16)
    assert layers["branch"] == 0
    # The activation of the sum is saved by itself and by the linear layer.
    assert sum(layers.values()) == FLOAT * (3 * 16 + 8 * 16 + 8 * 16 + 10) + 8


class Attention(nn.Module):
    def __init__(self, dropout, written_out=False):
        super().__init__()
        self.dropout, self.written_out = dropout, written_out
        self.project = nn.Linear(16, 48)
        self.score = nn.Linear(16, 10)

    def forward(self, x):
        q, k, v = self.project(x).reshape(x.shape[0], 64, 3, 1, 16).permute(2, 0, 3, 1, 4).unbind(0)
        if self.written_out:
            x = functional.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), self.dropout) @ v
        else:
            x = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.score(x.squeeze(1).mean(1))


@pytest.mark.slow
def test_fused_attention_keeps_no_matrix_whatever_its_dropout():
    """64 tokens of 16 numbers: data, q, k and v in one piece, the result, a float per token, and the loss."""
    expected = FLOAT * (64 * 16 + 3 * 64 * 16 + 64 * 16 + 64 + 16 + 10) + 8
    for dropout in (0.0, 0.1):
        layers = capture(Attention(dropout), (64, 16)).graph.layers
        assert sum(layer.activation_bytes for layer in layers) == expected


@pytest.mark.slow
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_keeps_the_gates_of_each_step(make, directions):
    steps, width, hidden = 4, 6, 32

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = make(width, hidden, 2, batch_first=True, bidirectional=directions == 2)
            self.head = nn.Linear(directions * hidden, 3)

        def forward(self, x):
            return self.head(self.steps(x)[0].sum(1))

    layer = capture(Recurrent(), (steps, width)).graph.layers[0]
    states = 2 * directions * hidden
    # Inputs of the first layer, the states and gates of each step, and at least the first state.
    least = FLOAT * (steps * width + steps * states * (1 + 5))
    assert least < layer.activation_bytes <= least + FLOAT * (2 * steps * states + 4 * states)


@pytest.mark.slow
def test_attention_written_out_keeps_its_matrix_and_dropout_a_byte_an_element():
    plain = capture(Attention(0.0, written_out=True), (64, 16)).graph.layers
    dropped = capture(Attention(0.1, written_out=True), (64, 16)).graph.layers
    fused = capture(Attention(0.0), (64, 16)).graph.layers
    total = [sum(layer.activation_bytes for layer in layers) for layers in (fused, plain, dropped)]
    assert total[1] - total[0] >= FLOAT * 64 * 64 - FLOAT * (64 * 16 + 64)
    # The mask, and the matrix behind the dropout, which the product saves beside the softmax's own.
    assert total[2] - total[1] == 64 * 64 + FLOAT * 64 * 64


def test_frozen_layers_save_no_activations():
    model = Chain()
    for parameter in (*model.first.parameters(), *model.norm.parameters(), *model.second.parameters()):
        parameter.requires_grad_(False)
    layers = {layer.name: layer.activation_bytes for layer in capture(model, (3, 8, 8)).graph.layers}
    assert layers["first"] == layers["pool"] == 0
    assert layers["second"] == FLOAT * 4 * 16


class Offset(nn.Module):
    """Adds a table of its own, expanded over the batch, and multiplies by what is made of parameters alone."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, width))
        self.scale = nn.Parameter(torch.zeros(width))
        self.score = nn.Linear(width, 10)

    def forward(self, x):
        rows = torch.cat([self.table.expand(x.shape[0], -1), x], dim=1).view(x.shape[0], 2, -1)
        return self.score(rows.sum(1) * self.scale.exp())


def test_what_does_not_grow_with_the_batch_is_not_counted():
    width = 5000
    layers = capture(Offset(width), (width,)).graph.layers
    # Saved: the sum (by the product), the product (by the linear layer), and the loss; not exp(scale).
    assert sum(layer.activation_bytes for layer in layers) == FLOAT * (2 * width + 10) + 8


def test_statistics_of_a_normalisation_are_not_counted():
    width = 5000
    model = nn.Sequential(nn.Linear(7, width), nn.BatchNorm1d(width), nn.Linear(width, 10))
    # The data, what the normalisation reads and what it makes, and the loss; not the batch's mean and deviation.
    layers = capture(model, (7,)).graph.layers
    assert sum(layer.activation_bytes for layer in layers) == FLOAT * (7 + 2 * width + 10) + 8


def test_parameters_are_not_counted_whatever_their_size():
    # As many features as the fake run has samples: their number alone does not distinguish parameters from activations.
    width = PRIME_BATCH
    layers = capture(nn.Sequential(nn.Linear(7, width), nn.Linear(width, 10)), (7,)).graph.layers
    assert sum(layer.activation_bytes for layer in layers) == FLOAT * (7 + width + 10) + 8


def test_capture_under_no_grad_or_on_the_meta_device_gives_the_same_activation_memory():
    expected = [layer.activation_bytes for layer in capture(Chain(), (3, 8, 8)).graph.layers]
    with torch.no_grad():
        assert [layer.activation_bytes for layer in capture(Chain(), (3, 8, 8)).graph.layers] == expected
    on_no_device = capture(Chain().to("meta"), (3, 8, 8))
    assert [layer.activation_bytes for layer in on_no_device.graph.layers] == expected
