"""Kinds of models that were refused, or would have trained differently: compared with plain torch."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from deeppool.errors import CaptureError
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.extract import extract
from tests.graph.capture.test_capture import run_by_segments

BATCH = 6


class Twice(nn.Module):
    """A siamese network: one encoder with BatchNorm, called on each half of the features."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head((self.encoder(x[:, :4]) - self.encoder(x[:, 4:] * 2)).abs())


class FrozenFeatures(nn.Module):
    """Features computed without gradients, whose BatchNorm still updates its statistics."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = x.tanh()
        with torch.no_grad():
            y = self.features(x)
        return self.head(y + x)


class TwoLists(nn.Module):
    """One layer in two lists, as CoaT's position encodings are: export calls it by a proxy."""

    def __init__(self):
        super().__init__()
        shared = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.ModuleDict({"shared": shared, "own": nn.Linear(8, 8)}) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = x + block["own"](block["shared"](x).relu())
        return self.head(x)


class Spectrum(nn.Module):
    """Complex numbers between modules, which no back end sends."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        waves = torch.fft.fft(self.first(x)) * torch.fft.fft(self.second(x).relu())
        return self.head(torch.fft.ifft(waves).real)


class LowFrequencies(nn.Module):
    """Writes into parts of complex tensors, as Fourier neural operators do; such writes have no gradient in torch."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.real, self.imaginary = (nn.Parameter(torch.randn(3, 3)) for _ in range(2))

    def forward(self, x):
        waves = torch.fft.rfft(self.first(x))
        kept = torch.zeros_like(waves)
        kept[:, :3] = waves[:, :3] @ torch.complex(self.real, self.imaginary)
        kept.select(-1, 4).copy_(waves[:, 4].conj())
        return self.head(torch.fft.irfft(kept, n=8))


class DropsSamples(nn.Module):
    """Stochastic depth: ``bernoulli_`` without its probability, which is then a half."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x + self.body(x) * x.new_empty(x.shape[0], 1).bernoulli_())


class Pairs(nn.Module):
    """Both inputs go through one encoder as one batch of twice the samples, as RAFT's images do."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, left, right):
        left, right = self.encoder(torch.cat([left, right])).relu().chunk(2)
        return self.head(left * right)


def train(model, loss_of, batches):
    """Two steps of SGD; returns losses, parameters and running statistics."""
    losses = []
    torch.manual_seed(2)
    for batch in batches:
        loss = loss_of(*batch)
        loss.backward()
        losses.append(loss.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)
                    parameter.grad = None
    return losses, {name: value for name, value in model.state_dict().items() if value.is_floating_point()}


def build(kind):
    torch.manual_seed(0)
    return kind().double()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Twice, FrozenFeatures, TwoLists, Spectrum, LowFrequencies, DropsSamples])
def test_two_steps_give_the_weights_and_statistics_of_plain_torch(kind):
    torch.manual_seed(1)
    batches = [(torch.randn(BATCH, 8, dtype=torch.float64), torch.randint(3, (BATCH,))) for _ in range(2)]
    plain, model = build(kind), build(kind)
    captured = capture(model, (8,), input_dtype=torch.float64)
    expected = train(plain, lambda x, target: F.cross_entropy(plain(x), target), batches)
    start = [value.clone() for value in model.state_dict().values()]
    torch.testing.assert_close(train(model, captured.program, batches), expected)

    def by_layers(x, target):
        loss, gradients = run_by_segments(captured, range(1, len(captured.nodes)), x, target)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        return loss.detach().requires_grad_()

    for value, before in zip(model.state_dict().values(), start, strict=True):
        value.copy_(before)
    torch.testing.assert_close(train(model, by_layers, batches), expected)


def test_layers_with_one_batch_norm_are_one_so_that_its_statistics_stay_in_one_place():
    captured = capture(build(Twice), (8,), input_dtype=torch.float64)
    normalised = [layer for layer in captured.graph.layers if "batch_norm" in layer.operators]
    assert [layer.operators.count("batch_norm") for layer in normalised] == [2]
    assert "head" in [layer.name for layer in captured.graph.layers]


def test_two_inputs_in_one_batch_are_captured_with_the_gradients_of_plain_torch():
    model = build(Pairs)
    captured = capture(model, {"left": (4,), "right": (4,)}, input_dtype=torch.float64)
    assert "head" in [layer.name for layer in captured.graph.layers]
    left, right, target = (*torch.randn(2, BATCH, 4, dtype=torch.float64), torch.randint(3, (BATCH,)))
    for start, stop in ((0, 4), (4, 6)):
        shard = [x[start:stop] for x in (left, right, target)]
        values = dict(zip(captured.program.graph.find_nodes(op="placeholder"), shard, strict=True))
        for layer in range(len(captured.nodes)):
            segment = extract(captured, [layer])
            outputs = segment.module(stop - start, *map(values.get, segment.inputs))
            values.update(zip(segment.outputs, outputs, strict=True))
        expected = F.cross_entropy(model(*shard[:2]), shard[2])
        torch.testing.assert_close(values[segment.outputs[-1]], expected)


class LeavesAutocast(nn.Module):
    """Attention in full precision, whatever the rest of the model runs in."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        with torch.autocast(x.device.type, enabled=False):
            y = (q.float() @ k.float().transpose(1, 2)).softmax(-1) @ v.float()
        return self.head(y.mean(1))


@pytest.mark.parametrize("enabled", [False, True])
def test_a_region_without_autocast_keeps_its_precision(enabled):
    torch.manual_seed(0)
    model = LeavesAutocast()
    captured = capture(model, (5, 8))
    x, target = torch.randn(BATCH, 5, 8), torch.randint(3, (BATCH,))
    types = []
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        expected = F.cross_entropy(model(x), target)
        found = captured.program(x, target)
        values = dict(zip(captured.program.graph.find_nodes(op="placeholder"), (x, target), strict=True))
        for layer in range(len(captured.nodes)):
            segment = extract(captured, [layer])
            outputs = segment.module(BATCH, *map(values.get, segment.inputs))
            values.update(zip(segment.outputs, outputs, strict=True))
            types += [value.dtype for value in outputs]
        assert torch.is_autocast_enabled("cpu") == enabled
    assert torch.equal(found, expected)
    assert torch.equal(outputs[-1], expected)
    assert (torch.bfloat16 in types) == enabled


# -- what stays refused, and what it says ---------------------------------------------------------------


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, images, targets=None):
        assert targets is not None, "targets should not be none when in training mode"
        return {"loss": F.cross_entropy(self.head(images), targets)}


class Halves(nn.Module):
    """Sizes that are no multiple of the batch."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.body(x)
        return self.head(x + x[: x.shape[0] // 2].mean(0) + x[: x.shape[0] - 1].sum(0))


class CountsSteps(nn.Module):
    """A counter that the next forward reads."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        scale = 1 / (1 + self.step)
        self.step += 1
        return self.head(x * scale)


class Sign(torch.autograd.Function):
    """A straight-through estimate: its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Square(torch.autograd.Function):
    """One that could be left to autograd, as those that save memory."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class Applies(nn.Module):
    def __init__(self, function=Sign):
        super().__init__()
        self.body, self.head, self.function = nn.Linear(8, 8), nn.Linear(8, 3), function

    def forward(self, x):
        return self.head(self.function.apply(self.body(x)))


class Hooked(Applies):
    """One that changes gradients by a hook on a value of its forward."""

    def __init__(self, factor=2):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        x = self.body(x)
        x.register_hook(lambda gradient: self.factor * gradient)
        return self.head(x)


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.vmap(self.body)(x))


class FunctionalBag(nn.Module):
    """Sums of rows of a table, in the model's own forward; offsets of the bags are other outputs of the operator."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(9, 8)), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.embedding_bag(x, self.table, mode="sum"))


def test_a_bag_of_the_models_own_forward_is_captured():
    captured = capture(FunctionalBag(), (4,), input_dtype=torch.int64)
    x, y = torch.randint(9, (BATCH, 4)), torch.randint(3, (BATCH,))
    torch.testing.assert_close(captured.program(x, y), F.cross_entropy(captured.source(x), y))


def test_an_autograd_function_whose_backward_is_the_derivative_is_captured():
    names = [layer.name for layer in capture(Applies(Square), (8,)).graph.layers]
    assert names == ["body", "mul", "head"]


def test_a_hook_that_leaves_the_gradients_as_they_are_is_captured():
    names = [layer.name for layer in capture(Hooked(factor=1), (8,)).graph.layers]
    assert names == ["body", "head"]


def test_a_loss_may_leave_autograd_but_not_have_a_backward_that_export_loses():
    def focal(scores, target):
        errors = F.cross_entropy(scores, target, reduction="none")
        with torch.no_grad():
            weights = 1 - torch.exp(-errors)
        return (weights * errors).mean()

    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    captured = capture(model, (8,), loss=focal)
    x, target = torch.randn(BATCH, 8), torch.randint(3, (BATCH,))
    expected = torch.autograd.grad(focal(model(x), target), model.weight)
    torch.testing.assert_close(torch.autograd.grad(captured.program(x, target), model.weight), expected)
    with pytest.raises(CaptureError, match=r"^the loss of Linear runs Sign, a torch.autograd.Function whose backward"):
        capture(model, (8,), loss=lambda scores, target: focal(Sign.apply(scores), target))


@dataclass
class Outputs:
    logits: torch.Tensor


class ReturnsOutputs(nn.Linear):
    """Returns a class of its own, as many models of research code do."""

    def __init__(self):
        super().__init__(8, 3)

    def forward(self, x):
        return Outputs(super().forward(x))


class LoopsOverSamples(ReturnsOutputs):
    def forward(self, x):
        return torch.stack([nn.Linear.forward(self, x[sample]) for sample in range(x.shape[0])])


class DropsLayers(ReturnsOutputs):
    """LayerDrop by Python's random numbers: the captured graph had the layers of one draw, in silence."""

    def forward(self, x):
        return nn.Linear.forward(self, x if random.random() < 0.5 else -x)


class DropsLayersByNumpy(ReturnsOutputs):
    def forward(self, x):
        return nn.Linear.forward(self, x if np.random.uniform() < 0.5 else -x)


class Differentiates(ReturnsOutputs):
    """A physics-informed network: the gradient of its output by its input is an output, too."""

    def forward(self, x):
        found = nn.Linear.forward(self, x.requires_grad_())
        return torch.cat([found, torch.autograd.grad(found.sum(), x, create_graph=True)[0]], 1)


class Jacobian(ReturnsOutputs):
    def forward(self, x):
        return torch.func.vmap(torch.func.jacrev(lambda one: nn.Linear.forward(self, one)))(x).flatten(1)


class Compares(ReturnsOutputs):
    """Similarities of all samples, as contrastive losses take them."""

    def forward(self, x):
        found = nn.Linear.forward(self, x)
        return found @ found.T


class TakesMapping(ReturnsOutputs):
    def forward(self, batch):
        return nn.Linear.forward(self, batch["x"])


class Trains(nn.Module):
    """Has a training_step, as a LightningModule."""

    def __init__(self):
        super().__init__()
        self.network = nn.Linear(8, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (DropsLayers, r"^DropsLayers draws random numbers of Python or NumPy, .*by torch, for each sample"),
        (DropsLayersByNumpy, r"^DropsLayersByNumpy draws random numbers of Python or NumPy"),
        (Differentiates, r"\(it runs torch\.autograd\.grad in its forward, .*: write the derivative by operators\)$"),
        (Jacobian, r"\(it transforms functions, as torch\.func does, .*\)$"),
        (Compares, r"^Compares returns no tensor of samples first but one of shape \(batch, batch\), expected"),
        (TakesMapping, r"does forward take a dict\? inputs are arguments of forward, a tensor each"),
        (Trains, r"^Trains has no forward, .*\(give the network itself, not what trains it\)$"),
        (
            ReturnsOutputs,
            r"^ReturnsOutputs returns a \S+Outputs, whose tensors .*register_dataclass on the class where it",
        ),
        (LoopsOverSamples, r"^LoopsOverSamples fixes its batch to 3 samples: .* no loop over the samples\)$"),
        (Applies, r"^Applies runs Sign, a torch.autograd.Function whose backward torch.export loses: its gradients"),
        (Hooked, r"^Hooked runs Tensor.register_hook, whose hook torch.export loses: its gradients"),
        (Mapped, r"^Mapped runs _add_batch_dim, a transformation of functions"),
        (Detector, r"^Detector takes targets in training and returns losses, as detectors do: .*backbone\)$"),
        (Halves, r"^Halves makes samples depend on each other, by slice: "),
        (CountsSteps, r"^CountsSteps writes its state step in place by aten.add_.Tensor: "),
    ],
)
def test_refusals_say_what_the_model_does(kind, error):
    with pytest.raises(CaptureError, match=error):
        capture(kind(), (8,))
