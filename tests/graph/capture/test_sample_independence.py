"""Models whose samples depend on each other are refused by name, others are not.

The oracle is the training itself: the gradients of one process on six samples, against those of two ranks on four and
two of them, weighted by their numbers. It runs the model as it is, without capture.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from deeppool.errors import CaptureError
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.extract import extract

SHAPE = (3, 8)
"""One sample: three tokens of eight numbers."""


class Mix(nn.Module):
    """A function of the activations as a module, with weights."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).sin().reshape(8, 8))
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.lstm_of_steps = nn.LSTM(8, 8)
        self.register_buffer("bank", torch.zeros(8))

    def forward(self, y):
        return self.function(self, y)


class Net(nn.Module):
    """Scores of samples after some function of (batch, tokens, features), of the same shape or (batch, features)."""

    def __init__(self, function):
        super().__init__()
        self.body, self.mix, self.head = nn.Linear(8, 8), Mix(function), nn.Linear(8, 4)

    def forward(self, x):
        y = self.mix(self.body(x))
        return self.head(y.mean(1) if y.dim() == 3 else y)


def build(function):
    torch.manual_seed(0)
    return Net(function)


def gradient(model, x, target):
    torch.manual_seed(1)
    loss = F.cross_entropy(model(x), target)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None])


def trains_alike(model):
    """Whether two ranks with four and two samples have together the gradient of one process with all six."""
    model = model.double()
    x, target = torch.randn(6, *SHAPE, dtype=torch.float64), torch.randint(4, (6,))
    whole = gradient(model, x, target)
    parts = gradient(model, x[:4], target[:4]) * 4 / 6 + gradient(model, x[4:], target[4:]) * 2 / 6
    return torch.allclose(whole, parts, rtol=1e-9, atol=1e-9 * float(whole.abs().max()))


# -- samples that depend on each other ----------------------------------------------------------------


def balanced(_, y):
    """Mixture of experts whose gates are scaled by the load of all samples."""
    gates = y.softmax(-1)
    return y * gates / gates.mean((0, 1))


def similar(_, y):
    """In-batch similarities, as of contrastive losses."""
    z = F.normalize(y.flatten(1))
    return (z @ z.T).softmax(1) @ y[:, 0]


def negatives(_, y):
    return y - y[torch.randint(0, y.shape[0], (y.shape[0],))]


def standardised(_, y):
    return (y - y.mean(0)) / (y.std(0) + 1)


def over_the_batch(_, y):
    """Attention in which the samples are the tokens."""
    z = y.transpose(0, 1)
    return F.scaled_dot_product_attention(z, z, z).transpose(0, 1)


def smoothed(_, y):
    return F.avg_pool1d(y.permute(1, 2, 0), 3, 1, 1).permute(2, 0, 1)


def convolved(mix, y):
    kernel = mix.weight.unsqueeze(-1).expand(8, 8, 3)
    return F.conv1d(y.permute(1, 2, 0), kernel, padding=1).permute(2, 0, 1)


def sampled_pairs(_, y):
    order = y[:, 0, 0].argsort()
    return y[order] - y


def under_autocast(_, y):
    with torch.autocast("cpu", torch.bfloat16):
        return y - y.mean(0)


def ranked_and_masked(_, y):
    """Reads tokens by the rank of the sample, of which a constant mask keeps one."""
    rank = y[..., :1].argsort(0) % 3
    return y.gather(1, rank.expand_as(y)).masked_fill(torch.arange(3)[:, None] > 0, 0.0)


def in_wrong_order(_, y):
    """Merges samples and tokens in two orders."""
    return (y.flatten(0, 1) + y.transpose(0, 1).flatten(0, 1)).view_as(y)


def shifted(_, y):
    return y - torch.cat([torch.ones(1, 3, 8), y])[:-1]


@torch.library.custom_op("deeppool_tests::raise_to_peak", mutates_args=())
def raise_to_peak(y: torch.Tensor) -> torch.Tensor:
    """An operator that no rule knows; its samples depend on each other only where one has a large number."""
    return y + (y.amax(0) - 8).relu()


@raise_to_peak.register_fake
def _(y):
    return torch.empty_like(y)


raise_to_peak.register_autograd(lambda context, gradient: gradient)


def with_capacity(_, y):
    """Mixture of experts that drops the tokens after an expert's first four."""
    expert = F.one_hot(y.flatten(0, 1).argmax(-1), 8)
    kept = ((expert.cumsum(0) - 1) * expert).sum(-1) < 4
    return y * kept.view(-1, 3, 1)


DEPENDENT = {
    "mean": (lambda _, y: y - y.mean(0), "mean"),
    "variance": (lambda _, y: y / (1 + y.var(0)), "var"),
    "standardised": (standardised, "mean"),
    "maximum": (lambda _, y: y - y.max(0).values, "max"),
    "norm of all": (lambda _, y: y / y.norm(), "(linalg_vector_)?norm"),
    "softmax over samples": (lambda _, y: y.softmax(0), "softmax"),
    "similarity": (similar, "matmul"),
    "einsum over samples": (lambda _, y: torch.einsum("bti,cti->bi", y, y.relu()), "einsum"),
    "linear of itself": (lambda _, y: F.linear(y[:, 0], y[:, 1]).softmax(1) @ y[:, 0], "linear"),
    "distances": (lambda _, y: y[:, 0] * torch.cdist(y[:, 0], y[:, 0]).mean(1, keepdim=True), "cdist"),
    "differences": (lambda _, y: (y[:, None] - y[None]).square().mean(1), "sub"),
    "roll": (lambda _, y: y - y.roll(1, 0), "roll"),
    "flip": (lambda _, y: y - y.flip(0), "flip"),
    "shuffle": (lambda _, y: y - y[torch.randperm(y.shape[0])], "randperm"),
    "negatives": (negatives, "index"),
    "argsort": (sampled_pairs, "argsort"),
    "sort": (lambda _, y: y.sort(0).values, "sort"),
    "cumulative sum": (lambda _, y: y.cumsum(0), "cumsum"),
    "flattened": (lambda _, y: y.flatten(0, 1).cumsum(0).view_as(y), "cumsum"),
    "batch size": (lambda _, y: y / y.shape[0], "div"),
    "batch size as a tensor": (lambda _, y: y / torch.ones(y.shape[0]).sum().to(y.dtype), "sum"),
    "position": (lambda _, y: y * torch.arange(y.shape[0])[:, None, None], "arange"),
    "gates": (balanced, "mean"),
    "capacity": (with_capacity, "cumsum"),
    "attention over samples": (over_the_batch, "scaled_dot_product_attention"),
    "pooling": (smoothed, "avg_pool1d"),
    "convolution": (convolved, "conv1d"),
    "rank": (ranked_and_masked, "argsort"),
    "wrong order": (in_wrong_order, "add"),
    "wrong split": (lambda _, y: y.flatten(0, 1).chunk(3)[0], "chunk"),
    "shift": (shifted, "cat"),
    "custom operator": (lambda _, y: raise_to_peak(100 * y), "raise_to_peak"),
    "autocast": (under_autocast, "mean|wrap_with_autocast"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEPENDENT)
def test_samples_that_depend_on_each_other_are_refused_by_layer_and_operator(kind):
    function, operator = DEPENDENT[kind]
    assert not trains_alike(build(function))
    error = rf"^Net makes samples depend on each other in mix\S*, by ({operator}): each GPU has only its own samples"
    with pytest.raises(CaptureError, match=error) as raised:
        capture(build(function), SHAPE)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_integers_of_the_whole_batch_are_refused_if_the_loss_reads_them():
    class Ranked(nn.Module):
        """Scores, and the rank of each sample among the others."""

        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            scores = self.head(x[:, 0])
            return scores, scores[:, 0].argsort()

    def loss(outputs, target):
        scores, rank = outputs
        return (F.cross_entropy(scores, target, reduction="none") * rank).mean()

    with pytest.raises(CaptureError, match="Ranked makes samples depend on each other, by argsort"):
        capture(Ranked(), SHAPE, loss=loss)


def test_samples_that_an_lstm_takes_for_steps_are_refused():
    model = build(lambda mix, y: mix.lstm_of_steps(y)[0])
    assert not trains_alike(model)
    # Export itself unrolls the steps.
    with pytest.raises(CaptureError, match="Net fixes its batch to 3 samples"):
        capture(model.float(), SHAPE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_gradients_that_are_divided_by_the_frequency_of_an_index_are_refused_if_samples_have_it(kind):
    def build_tokens(layer, **options):
        torch.manual_seed(0)
        return nn.Sequential(layer(5, 4, **options), nn.Flatten(), nn.Linear(12 if layer is nn.Embedding else 4, 4))

    def gradient(model, tokens):
        model.zero_grad()
        F.cross_entropy(model(tokens), tokens[:, 0].clamp(max=3)).backward()
        return model[0].weight.grad

    tokens = torch.tensor([[0, 1, 2], [0, 0, 1], [1, 1, 3], [4, 0, 1]])
    model = build_tokens(kind, scale_grad_by_freq=True)
    whole, *halves = (gradient(model, part).clone() for part in (tokens, tokens[:2], tokens[2:]))
    assert not torch.allclose(whole, sum(halves) / 2)
    with pytest.raises(CaptureError, match=r"in 0, by embedding.* \(leave scale_grad_by_freq False"):
        capture(model, (3,), input_dtype=torch.int64)
    capture(build_tokens(kind), (3,), input_dtype=torch.int64)


def test_positions_that_are_the_same_for_all_samples_may_divide_gradients_by_their_frequency():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(3, 8, scale_grad_by_freq=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.head((x + self.embedding(torch.arange(3))).mean(1))

    capture(Positions(), SHAPE)


def remembered(mix, y):
    mix.bank.copy_(y.detach().mean((0, 1)))
    return y - mix.bank


def test_a_memory_of_samples_is_refused():
    with pytest.raises(CaptureError, match=r"Net writes its state mix\.bank in place"):
        capture(build(remembered), SHAPE)


# -- samples that do not ------------------------------------------------------------------------------


def last_token(_, y):
    """Reads of each sample the token that it points to, as classifiers of sequences do."""
    lengths = y.sum(-1).argmax(1)
    return y[torch.arange(y.shape[0]), lengths]


def two_views(_, y):
    both = torch.cat([y, y.flip(1)], 0).relu()
    first, second = both.chunk(2, 0)
    return first * second


def with_class_token(mix, y):
    token = mix.weight[:1].repeat(y.shape[0], 1, 1)
    return torch.cat([token, y], 1)[:, :3]


def windows(_, y):
    """Merges the samples with two halves of the features, and attends in each half."""
    parts = y.unflatten(2, (2, 4)).transpose(1, 2).flatten(0, 1)
    parts = F.scaled_dot_product_attention(parts, parts, parts)
    return parts.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


def masked(_, y):
    """Masks a sequence by a length of each sample."""
    lengths = (y[:, :, 0] > 0).sum(1)
    mask = torch.arange(3)[None] < lengths[:, None]
    return y.masked_fill(~mask[..., None], 0.0)


def steps_first(mix, y):
    return mix.lstm_of_steps(y.transpose(0, 1))[0].transpose(0, 1)


def as_images(_, y):
    return F.interpolate(F.unfold(y[:, None], 2)[:, None, :1], size=(1, 8)).flatten(1)


def along_tokens(_, y):
    """Most operators that take a dimension."""
    z = F.normalize(y, dim=1) + y.softmax(-1) + F.layer_norm(y, (3, 8)) + y.sort(1).values + y.roll(1, 1)
    return z + y.cumsum(1) + y.topk(3, 1).values + y.var(2, keepdim=True) + F.pad(y, (1, -1, 1, -1))


def factories(_, y):
    return y * F.one_hot(y.argmax(-1), 8) + torch.zeros(y.shape[0], 1, 8) + torch.full_like(y, 2.0)


def products(mix, y):
    z = (y @ y.mT).softmax(-1) @ y + torch.cdist(y, y).mean(2, keepdim=True)
    return torch.einsum("bti,ij->btj", z, mix.weight) + torch.einsum("bti,bsi->bts", y, y) @ y


def experts(mix, y):
    """Sorts the tokens of all samples by their expert, and restores their order."""
    tokens = y.flatten(0, 1)
    expert, order = tokens.argmax(-1).sort(stable=True)
    done = (tokens[order] * mix.weight[expert]).relu()
    restored = torch.empty_like(order)
    restored[order] = torch.arange(order.shape[0])
    return done[restored].view_as(y)


def experts_of_samples(mix, y):
    """Sorts the samples by their expert, and restores their order."""
    expert, order = y.mean(1).argmax(-1).sort(stable=True)
    done = (y[order] * mix.weight[expert][:, None]).relu().sin()
    return done[order.argsort()]


def flat_position(_, y):
    """Reads of each sample the token that it points to, by its position among those of the batch."""
    tokens = (y[:, :, 0] > 0).sum(1).clamp(max=2)
    return y.flatten(0, 1)[torch.arange(y.shape[0]) * 3 + tokens]


INDEPENDENT = {
    "last token": last_token,
    "two views": two_views,
    "class token": with_class_token,
    "windows": windows,
    "masks": masked,
    "steps first": steps_first,
    "images": as_images,
    "experts": experts,
    "experts of samples": experts_of_samples,
    "flat position": flat_position,
    "along tokens": along_tokens,
    "factories": factories,
    "products": products,
    "Cholesky": lambda _, y: torch.linalg.cholesky(y @ y.mT + torch.eye(3, dtype=y.dtype)) @ y,
    "recurrent": lambda mix, y: mix.lstm(y)[0],
    "gathered": lambda _, y: y.gather(1, y.argmax(1, keepdim=True)).squeeze(1),
    "flattened": lambda mix, y: (y.reshape(-1, 8) @ mix.weight).view(-1, 24).unflatten(1, (3, 8)),
    "written part": lambda _, y: torch.cat([y[:, :1], y[:, 1:].clone().mul_(2)], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", INDEPENDENT)
def test_samples_that_do_not_depend_on_each_other_are_captured(kind):
    assert trains_alike(build(INDEPENDENT[kind]))
    model = build(INDEPENDENT[kind])
    x, target = torch.randn(6, *SHAPE), torch.randint(4, (6,))
    captured = capture(model, SHAPE, granularity="operator")
    torch.testing.assert_close(loss_on_other_shards(captured, x, target), F.cross_entropy(model(x), target))


def test_positions_in_the_batch_that_a_loss_computes_are_used_on_their_own_shard():
    def ordered(scores, target):
        order = target[:, 0].argsort()
        return F.mse_loss(scores[order], target[order])

    model = build(lambda _, y: y)
    x, target = torch.randn(6, *SHAPE), torch.randn(6, 4)
    captured = capture(model, SHAPE, loss=ordered, target=target[0], granularity="operator")
    torch.testing.assert_close(loss_on_other_shards(captured, x, target), F.mse_loss(model(x), target))


def loss_on_other_shards(captured, *data):
    """The loss where each operator runs on two shards that are not those of the operators before it."""
    values = dict(zip(captured.program.graph.find_nodes(op="placeholder"), data, strict=True))
    for layer in range(len(captured.nodes)):
        segment, cut = extract(captured, [layer]), 1 + layer % 5
        shards = [
            segment.module(len(range(6)[part]), *(values[node][part] for node in segment.inputs))
            for part in (slice(cut), slice(cut, None))
        ]
        if layer < len(captured.nodes) - 1:
            values |= zip(segment.outputs, map(torch.cat, zip(*shards, strict=True)), strict=True)
    (first,), (second,) = shards
    return (first * cut + second * (6 - cut)) / 6


@torch.library.custom_op("deeppool_tests::double_float32", mutates_args=())
def double_float32(y: torch.Tensor) -> torch.Tensor:
    """An operator that no rule knows and that takes one dtype."""
    if y.dtype != torch.float32:
        raise TypeError(y.dtype)
    return 2 * y


@double_float32.register_fake
def _(y):
    return torch.empty_like(y)


def test_an_operator_without_float64_is_tried_in_its_own_dtype():
    capture(build(lambda _, y: double_float32(y)), SHAPE)


def test_random_numbers_of_each_sample_are_captured():
    def noisy(_, y):
        kept = torch.empty(y.shape[0], 1, 1).bernoulli_(0.7)
        noise = torch.randn_like(y) + torch.normal(y, 0.1) + torch.poisson(y.exp()) + torch.rand(y.shape[0], 1, 1)
        return F.dropout(y * kept + noise, 0.5)

    capture(build(noisy), SHAPE)


def test_capture_draws_no_numbers_of_the_training():
    model = build(last_token)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    capture(model, SHAPE)
    assert torch.equal(torch.rand(1), expected)


# -- whole models, of which test_any_model captures more ------------------------------------------------


class OfImages(nn.Module):
    """A model of images, on the tokens of a sample as an image."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(F.interpolate(x[:, None].expand(-1, 3, -1, -1), (16, 16)))


VISION = {
    "VisionTransformer": lambda models: models.VisionTransformer(16, 8, 1, 2, 16, 32, num_classes=4),
    "SwinTransformer": lambda models: models.SwinTransformer(
        [2, 2], 8, [2, 1], [2, 4], [2, 2], num_classes=4, stochastic_depth_prob=0.0
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VISION)
def test_transformers_of_images_are_captured(name):
    import torchvision

    torch.manual_seed(0)
    model = OfImages(VISION[name](torchvision.models))
    capture(model, SHAPE)
    assert trains_alike(model)
