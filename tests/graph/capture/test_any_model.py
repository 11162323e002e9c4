"""Families of models, none of them a special case: captured, and the captured loss against the model's own.

What ``test_capture`` and ``test_real_graphs`` have is not here again; ``benchmarks/capture`` measures and plans all.
"""

import inspect

import pytest
import torch
from torch import nn

from benchmarks.capture.models import OWN, SMALL, TOKENS, small_language_model
from deeppool.errors import CaptureError
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.extract import example_inputs, extract
from deeppool.graph.capture.index_ranges import value_count
from deeppool.graph.capture.losses import classification_loss, token_loss
from deeppool.graph.inputs import resolve
from deeppool.graph.layer import Input
from deeppool.graph.models import libraries
from deeppool.graph.models.workloads import find_workload
from deeppool.graph.series_parallel import decompose
from deeppool.training.synthetic_task import SyntheticTask
from tests.sampling import sampled

BATCH = 4
IMAGES = {
    "alexnet": 64, "squeezenet1_1": 32, "googlenet": 32, "mobilenet_v3_small": 32, "shufflenet_v2_x0_5": 32,
    "efficientnet_b0": 32, "regnet_y_400mf": 32, "convnext_tiny": 32, "swin_t": 64,
}  # fmt: skip
RELATED = {
    "vgg11_bn": 32, "resnext50_32x4d": 32, "mobilenet_v2": 32, "mnasnet0_5": 32, "regnet_x_400mf": 32, "swin_v2_t": 64,
    "maxvit_t": 224,
}  # fmt: skip
"""Made as one of those, or of what two of those have."""


def check_loss(captured):
    """Checks that the captured loss equals the model's own for the same data and seed."""
    *inputs, target = SyntheticTask(captured, BATCH, seed=0).shard(0, 0, BATCH)
    names = [given.name for given in captured.graph.inputs]
    with torch.no_grad():
        torch.manual_seed(0)
        found = captured.program(*inputs, target)
        torch.manual_seed(0)
        scores = captured.source(**dict(zip(names, inputs, strict=True))) if names[0] else captured.source(*inputs)
        expected = (token_loss if target.dim() == 2 else classification_loss)(scores, target)
    torch.testing.assert_close(found, expected)
    decompose([layer.predecessors for layer in captured.graph.layers])
    return target


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    sampled([*IMAGES.items(), *RELATED.items()], "squeezenet1_1", "mobilenet_v3_small"),
)
def test_classifier_of_torchvision_is_captured_by_its_name(name, size):
    check_loss(capture(name, (3, size, size)))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sampled(SMALL, "gpt2", "t5"))
def test_a_language_model_is_captured_unchanged(architecture):
    torch.manual_seed(0)
    model, shapes = small_language_model(architecture)
    captured = capture(model, shapes, input_dtype=torch.int64)
    assert [given.name for given in captured.graph.inputs] == list(shapes)
    assert check_loss(captured).shape == (BATCH, *TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_model_built_by_user_code_is_captured(name):
    torch.manual_seed(0)
    build, shape, dtype = OWN[name]
    check_loss(capture(build(), shape, input_dtype=dtype))


# -- tokens, several inputs and outputs ---------------------------------------------------------------


class TwoInputs(nn.Module):
    """Tokens and numbers, by name; scores among other outputs, one of which does not lead with the batch."""

    def __init__(self):
        super().__init__()
        self.embedding, self.numbers = nn.Embedding(50, 8), nn.Linear(3, 8)
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 7)

    def forward(self, tokens, numbers):
        states, (last, _) = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1] + self.numbers(numbers)), last


def two_inputs():
    torch.manual_seed(0)
    shapes, dtypes = {"tokens": (5,), "numbers": (3,)}, {"tokens": torch.int64}
    return capture(TwoInputs(), shapes, input_dtype=dtypes)


@pytest.mark.slow
def test_model_of_several_inputs_and_outputs_is_captured():
    captured = two_inputs()
    assert captured.graph.inputs == (Input("tokens", (5,), "int64"), Input("numbers", (3,), "float32"))
    check_loss(captured)


@pytest.mark.slow
def test_tokens_and_classes_are_drawn_from_the_whole_vocabulary_of_the_model():
    captured = two_inputs()
    counts = [value_count(node) for node in captured.program.graph.nodes if node.op == "placeholder"]
    assert counts == [50, 2, 7]
    tokens, numbers, target = SyntheticTask(captured, 200, seed=0).tensors
    assert (tokens.dtype, numbers.dtype) == (torch.int64, torch.float32)
    assert sorted(set(tokens.flatten().tolist())) == list(range(50))
    assert sorted(set(target.tolist())) == list(range(7))
    # Each class has tokens of its own, so there is something to learn.
    assert torch.equal(tokens % 7, target[:, None].expand_as(tokens))


class Looked(nn.Module):
    """Rows of a table of 60, by indices that may be shifted or scaled before."""

    def __init__(self, rows):
        super().__init__()
        self.table, self.rows, self.head = nn.Embedding(60, 8), rows, nn.Linear(8, 7)
        self.register_buffer("offsets", torch.tensor([0, 10, 30]))

    def forward(self, x):
        return self.head(self.rows(self, x).mean(1))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(60, 8), nn.Linear(8, 7)

    def forward(self, x):
        return self.head(self.table(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "count"),
    [
        (Bag, 60),
        (lambda: Looked(lambda model, x: model.table.weight[x]), 60),
        (lambda: Looked(lambda model, x: model.table(x + model.offsets)), 30),
        (lambda: Looked(lambda model, x: model.table(x + 3)), 57),
        (lambda: Looked(lambda model, x: model.table(7 * x)), 9),
        (lambda: Looked(lambda model, x: model.table.weight[(x - 1) * 2]), 30),
        (lambda: Looked(lambda model, x: model.table(x + x.flip(1))), 2),
    ],
    ids=["bag", "index", "offsets", "shifted", "scaled", "scaled index", "sum"],
)
def test_indices_are_drawn_from_what_a_table_has_before_they_are_shifted_or_scaled(make, count):
    torch.manual_seed(0)
    captured = capture(make(), (3,), input_dtype=torch.int64)
    given, _ = (node for node in captured.program.graph.nodes if node.op == "placeholder")
    assert value_count(given) == count
    task = SyntheticTask(captured, 200, seed=0)
    assert torch.isfinite(captured.program(*task.tensors))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(3, 4, 5), (5, 3, 4), (4, 5, 3)])
def test_columns_that_index_several_dimensions_of_a_table_are_drawn_for_the_smallest(sizes):
    def rows(model, x):
        return model.table.weight.view(*sizes, 1, 8)[x[:, 0], x[:, 1], x[:, 2]]

    captured = capture(Looked(rows), (3,), input_dtype=torch.int64)
    given, _ = (node for node in captured.program.graph.nodes if node.op == "placeholder")
    assert value_count(given) == 3
    task = SyntheticTask(captured, 200, seed=0)
    assert torch.isfinite(captured.program(*task.tensors))


@pytest.mark.slow
def test_a_layer_is_measured_on_the_whole_vocabulary():
    captured = two_inputs()
    segment = extract(captured, [0])
    assert [node.name for node in segment.inputs] == ["tokens"]
    (tokens,) = example_inputs(segment, 200, torch.device("cpu"))
    assert sorted(set(tokens.flatten().tolist())) == list(range(50))


class Shifted(nn.Module):
    """Model that shifts its input by one as decoders do: two writes into parts of a tensor."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, tokens):
        shifted = tokens.new_zeros(tokens.shape)
        shifted[:, 1:] = tokens[:, :-1].clone()
        shifted[:, 0] = 3
        states = self.embedding(shifted).clone()
        states[:, :2, 4:] *= 2
        return self.head(states)


def test_writing_a_part_of_a_tensor_is_captured_with_its_gradients():
    torch.manual_seed(0)
    captured = capture(Shifted(), (6,), input_dtype=torch.int64)
    tokens, target = SyntheticTask(captured, BATCH, seed=0).shard(0, 0, BATCH)
    parameters = list(captured.source.parameters())
    losses = captured.program(tokens, target), token_loss(captured.source(tokens), target)
    torch.testing.assert_close(*losses)
    for found, expected in zip(*(torch.autograd.grad(loss, parameters) for loss in losses), strict=True):
        torch.testing.assert_close(found, expected)


class Constants(nn.Module):
    """A mask that code writes window by window, as Swin's; one that is read, written, and read again."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        mask = x.new_zeros(6)
        for part, value in ((slice(0, 2), 1.0), (slice(2, 5), 2.0)):
            mask[part] = value
        first = x * mask
        mask[0] = 7.0
        return self.head(first + mask)


def test_constants_written_in_place_keep_the_value_they_had_when_read():
    torch.manual_seed(0)
    captured = capture(Constants(), (6,))
    check_loss(captured)
    assert captured.graph.layers[0].operators[:1] == ("mul",)
    assert not any("fill" in operator for layer in captured.graph.layers for operator in layer.operators)


# -- names ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("efficientnet_b7", (Input("", (3, 600, 600)),)),
        ("bert_base", (Input("input_ids", (128,), "int64"),)),
        ("gpt2", (Input("input_ids", (128,), "int64"),)),
        ("t5_small", (Input("input_ids", (128,), "int64"), Input("decoder_input_ids", (128,), "int64"))),
    ],
)
def test_a_named_model_has_default_inputs(name, inputs):
    assert find_workload(name).inputs == inputs


@pytest.mark.stress
def test_language_models_of_published_sizes_need_the_operators_that_torchvision_lacks(monkeypatch):
    defined = []
    monkeypatch.setattr(libraries, "define_missing_operators", lambda: defined.append("nms"))
    find_workload("bert_base")
    assert defined


@pytest.mark.slow
def test_bert_base_is_bert_base():
    graph = capture("bert_base", (8,), granularity="block").graph
    # 110 M parameters with the language model's head, 12 layers of 768.
    assert graph.parameter_bytes == 4 * 109_514_298
    names = [layer.name for layer in graph.layers]
    assert [name for name in names if name.startswith("bert.encoder")] == [f"bert.encoder.layer.{i}" for i in range(12)]


def test_one_shape_is_for_each_of_a_models_own_inputs_and_names_are_for_one():
    own = find_workload("t5_small").inputs
    assert [given.shape for given in resolve(own, "t5_small", (16,), None)] == [(16,), (16,)]
    found = resolve(own, "t5_small", {"decoder_input_ids": (4,)}, None)
    assert [given.shape for given in found] == [(128,), (4,)]
    with pytest.raises(
        CaptureError, match=r"input_shape names 'labels', which is no input of t5_small: it takes input_"
    ):
        resolve(own, "t5_small", {"labels": (4,)}, None)


def test_a_callable_of_ones_own_takes_shapes_by_name():
    reference = "tests.graph.capture.test_any_model:TwoInputs"
    found = resolve(find_workload(reference).inputs, reference, {"tokens": (5,), "numbers": (3,)}, None)
    assert [(given.name, given.shape) for given in found] == [("tokens", (5,)), ("numbers", (3,))]


def test_indices_without_their_type_are_asked_for():
    with pytest.raises(CaptureError, match="do samples hold indices, as tokens"):
        capture(nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(40, 3)), (5,))


@pytest.mark.slow
def test_a_language_model_that_returns_its_cache_is_refused_with_how_to_leave_it_out():
    """The error proposed to register a class of the library."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    inputs = {"input_ids": (4,)}
    with pytest.raises(CaptureError, match=r"returns a \S+Cache, .* \(.* config\.use_cache = False .*\)$"):
        capture(model, inputs, input_dtype=torch.int64)
    config.use_cache = False
    assert capture(model, inputs, input_dtype=torch.int64).graph.layers


def test_models_of_transformers_without_the_library_raise_with_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(CaptureError, match=r"bert is a model of transformers, which is not installed \(pip install"):
        find_workload("bert_base")
    assert libraries.transformers_names() == []
    assert find_workload("resnet18").inputs == (Input("", (3, 224, 224)),)


# -- what cannot be captured -------------------------------------------------------------------------


class NoInputs(nn.Module):
    def forward(self):
        return torch.zeros(3, 4)


class Words(nn.Module):
    """Model that returns no tensor."""

    def forward(self, x):
        return "scores"


class Counts(nn.Module):
    """Model with a shape that depends on the data."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x[x.sum(1) > 0])


class WritesState(nn.Module):
    """Model with a buffer that each forward changes."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.head(x - self.mean)


class ByItem(nn.Module):
    """Model that branches on a number read from a tensor."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(x * 2 if x.max().item() > 1 else x)


class CumulativeNorm(nn.Module):
    """Model whose running statistics are the mean over all batches, by a count that torch reads as a number."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 4))

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize(
    ("build", "shape", "error"),
    [
        (NoInputs, (8,), r"NoInputs cannot take a sample of shape \(8,\)"),
        (NoInputs, {}, r"input_shape of NoInputs names no input: a model must take a tensor that has a batch"),
        (lambda: nn.LazyLinear(4), (8,), r"uninitialized parameter.*\(call the model once, on a batch, before"),
        (Words, (8,), r"Words returns no tensor of samples first, expected class scores"),
        (Counts, (8,), r"Counts makes a tensor whose size depends on data, by index: .*mask"),
        (WritesState, (8,), r"WritesState writes its state mean in place by aten.mul_"),
        (ByItem, (8,), r"ByItem has control flow that depends on data, at .*test_any_model.py:\d+: .*torch\.where"),
        (CumulativeNorm, (8,), r"depends on data in body\.1, at .*: .* \(momentum=None averages .* such as 0\.1\)"),
        (TwoInputs, {"tokens": (5,)}, r"TwoInputs cannot take a sample of tokens shape \(5,\) of int64: .*'numbers'"),
        (TwoInputs, (5,), r"TwoInputs cannot take a sample of shape \(5,\) of int64: .*'numbers'"),
    ],
    ids=lambda value: value.__name__ if inspect.isclass(value) else "",
)
def test_models_that_cannot_be_captured_raise_in_one_line(build, shape, error, capfd):
    with pytest.raises(CaptureError, match=error) as raised:
        capture(build(), shape, input_dtype=torch.int64 if build is TwoInputs else None)
    assert "\n" not in str(raised.value)
    # Export itself prints the graph that it has so far.
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in libraries.torchvision_names() if name.startswith("vit_")])
def test_a_vision_transformer_is_made_for_the_images_that_it_gets(name: str) -> None:
    """The best weights of some were trained on larger ones."""
    builder, (image,) = libraries.torchvision_model(name)
    with torch.device("meta"):
        model = builder()
    assert image.shape == (3, model.image_size, model.image_size)
