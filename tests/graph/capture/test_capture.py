"""Models as layer graphs, and the captured program against the model it came from."""

import copy
import functools
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from deeppool.errors import CaptureError, InvalidValueError
from deeppool.graph.capture import layer_records
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.extract import extract
from deeppool.graph.capture.losses import classification_loss
from deeppool.graph.models import workloads
from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, decompose
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("in_the_checkout")

ROOT = Path(__file__).resolve().parents[3]
TORCHVISION = ("vgg16", "resnet18", "resnet50", "wide_resnet101_2", "inception_v3", "vit_b_16")
EXAMPLE = "examples.two_branch:two_branch"


@pytest.fixture(scope="module")
def captured():
    """Captures a model by name, each of them once in this file."""
    # A model draws half a gigabyte of weights: one is kept at a time.
    return functools.lru_cache(maxsize=1)(capture)


# -- named models -----------------------------------------------------------------------------------


def check_names(model):
    """Each name is a module's path, or a module's path and one of the layer's own operators."""
    paths = {path for path, _ in model.source.named_modules()} | {"loss"}
    for layer in model.graph.layers:
        name = re.sub(r"#\d+$", "", layer.name)
        enclosing, _, operator = name.rpartition(".")
        assert name in paths or (enclosing in paths and operator in layer.operators), layer.name
    names = [layer.name for layer in model.graph.layers]
    assert len(set(names)) == len(names)


def check_ends_in_the_loss(model):
    """The last layer computes the loss, no other does, and every other one is read."""
    *others, last = model.graph.layers
    assert "cross_entropy_loss" in last.operators
    assert not any("cross_entropy_loss" in layer.operators for layer in others)
    *read, end = model.graph.successors()
    assert all(read)
    assert end == ()


def check_order_and_sizes(model):
    """Layers come in a topological order, and each edge says how many bytes a sample has there."""
    for index, layer in enumerate(model.graph.layers):
        assert all(source < index for source in layer.predecessors)
        assert len(layer.input_bytes) == len(layer.predecessors)
        assert all(size > 0 for size in layer.input_bytes)


def check_parameters(model):
    """Every parameter of the model belongs to one layer."""
    expected = {name: p.numel() * p.element_size() for name, p in model.source.named_parameters()}
    owned = [name for layer in model.graph.layers for name in layer.parameters]
    assert sorted(owned) == sorted(expected)
    assert model.graph.parameter_bytes == sum(expected.values())
    for layer in model.graph.layers:
        assert layer.parameter_bytes == sum(expected[name] for name in layer.parameters)


def regions(part):
    """All parts that are neither series nor blocks."""
    if isinstance(part, NonSeriesParallel):
        return [part]
    inner = part.branches if isinstance(part, ParallelBlock) else [b for b in (*part.blocks, part.tail) if b]
    return [found for other in inner for found in regions(other)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled([*TORCHVISION, EXAMPLE], "vgg16", "inception_v3", EXAMPLE))
def test_named_model_is_a_series_parallel_graph_of_its_modules(captured, name):
    model = captured(name)
    check_names(model)
    check_ends_in_the_loss(model)
    check_order_and_sizes(model)
    check_parameters(model)
    assert regions(decompose([layer.predecessors for layer in model.graph.layers])) == []
    if name == "vgg16":
        check_vgg16(model.graph)
    if name == "inception_v3":
        check_inception(model.graph)
    if name == "resnet18":
        check_resnet18(model.graph)


def check_vgg16(graph):
    """16 layers with weights, 5 poolings and one average."""
    heavy = [layer for layer in graph.layers if {"conv2d", "linear"} & set(layer.operators)]
    assert len(graph.layers) == 22
    assert len(heavy) == 16
    # A chain, in which activations joined the layers before them.
    assert [layer.predecessors for layer in graph.layers] == [(), *((index,) for index in range(21))]
    assert graph.layers[0].operators == ("conv2d", "relu")
    assert graph.layers[0].name == "features.0"
    # 64 channels of 224 x 224 floats.
    assert graph.layers[1].input_bytes == (64 * 224 * 224 * 4,)


def check_inception(graph):
    """Training has an auxiliary head, and four branches side by side in its first blocks."""
    heads = [layer.name for layer in graph.layers if layer.name.startswith("AuxLogits.")]
    assert heads == [
        "AuxLogits.avg_pool2d",
        "AuxLogits.conv0.conv",
        "AuxLogits.conv1.conv",
        "AuxLogits.adaptive_avg_pool2d",
        "AuxLogits.fc",
    ]
    by_name = {layer.name: layer for layer in graph.layers}
    assert len(by_name["Mixed_5b.cat"].predecessors) == 4
    # Both heads meet in the loss.
    assert [graph.layers[index].name for index in graph.layers[-1].predecessors] == ["AuxLogits.fc", "fc"]


def check_resnet18(graph):
    """A residual connection is an edge from the fork to the addition."""
    index = {layer.name: position for position, layer in enumerate(graph.layers)}
    addition = graph.layers[index["layer1.0.add"]]
    assert addition.predecessors == (index["maxpool"], index["layer1.0.conv2"])
    assert addition.operators == ("add", "relu")
    assert graph.layers[index["layer1.0.conv1"]].operators == ("conv2d", "batch_norm", "relu")


def test_equal_layers_share_a_signature_and_others_do_not(captured):
    layers = captured("resnet18").graph.layers
    by_name = {layer.name: layer.signature for layer in layers}
    # One measurement serves both blocks of layer1; layer2 works on other shapes.
    assert by_name["layer1.0.conv1"] == by_name["layer1.1.conv1"]
    assert by_name["layer1.0.conv1"] != by_name["layer2.1.conv1"]


def test_example_model_has_a_branch_and_a_join(captured):
    graph = captured(EXAMPLE).graph
    edges = {layer.name: [graph.layers[index].name for index in layer.predecessors] for layer in graph.layers}
    assert edges == {
        "stem.0": [],
        "fine.0.0": ["stem.0"],
        "fine.1.0": ["fine.0.0"],
        "coarse.0": ["stem.0"],
        "coarse.1.0": ["coarse.0"],
        "cat": ["fine.1.0", "coarse.1.0"],
        "merge.0": ["cat"],
        "head": ["merge.0"],
    }
    assert graph.input_shape == (3, 32, 32)
    assert graph.model == EXAMPLE


class MakesItsOwnTensor(nn.Module):
    """Module that makes a tensor on a named device, and one on the device of another tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x).to(x.device, torch.float64) + torch.zeros_like(x, device=x.device)


def test_the_capture_device_is_not_part_of_the_signatures(monkeypatch):
    found = capture(MakesItsOwnTensor(), (4,))
    # Which runs the program, and not on a device that is not there.
    monkeypatch.setattr(layer_records, "saved_bytes", lambda program, groups, *, autocast: [0] * len(groups))
    (made,) = [node for node in found.program.graph.nodes if "device" in node.kwargs]
    (moved,) = [node for node in found.program.graph.nodes if any(isinstance(a, torch.device) for a in node.args)]
    made.update_kwarg("device", torch.device("cuda", 1))
    moved.update_arg(1, torch.device("cuda", 1))
    again = layer_records.describe_layers(found.program, found.nodes)
    assert [layer.signature for layer in again] == [layer.signature for layer in found.graph.layers]
    made.update_kwarg("dtype", torch.float32)
    changed = layer_records.describe_layers(found.program, found.nodes)
    assert [layer.signature for layer in changed] != [layer.signature for layer in found.graph.layers]


def test_fingerprint_follows_the_graph(captured):
    first = captured(EXAMPLE).graph
    assert capture(EXAMPLE, seed=1).graph.fingerprint == first.fingerprint
    assert capture(EXAMPLE, (3, 48, 48)).graph.fingerprint != first.fingerprint


# -- errors -----------------------------------------------------------------------------------------


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(CaptureError, match=r"unknown model 'vgg61': known are .*vgg16.*package\.module:callable"):
        capture("vgg61")


def test_a_language_model_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "transformers_names", list)
    with pytest.raises(CaptureError, match=r"'gpt2'.*which is not installed: pip install 'deeppool\[transformers\]'"):
        capture("gpt2")


@pytest.mark.parametrize(
    "reference", ["no_such_package.models:build", "examples.two_branch:three_branch", "examples.nothing:build"]
)
def test_model_that_cannot_be_imported_names_the_folder_looked_in(reference):
    with pytest.raises(
        CaptureError, match=rf"cannot import model '{reference}': .*is {re.escape(str(ROOT))} the folder"
    ):
        capture(reference)


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("two_branch.py:two_branch", r"\(a module's name has no \.py: two_branch:two_branch\)$"),
        ("./examples/two_branch.py:two_branch", r"no \.py: two_branch:two_branch, in the folder examples\)$"),
    ],
)
def test_a_file_in_place_of_a_module_is_refused_with_the_name_of_the_module(reference, told):
    with pytest.raises(CaptureError, match=told):
        capture(reference)


def test_a_callable_that_returns_no_module_raises_with_what_it_returned():
    with pytest.raises(CaptureError, match=r"model 'pathlib:Path' returned a PosixPath, expected a torch\.nn\.Module"):
        capture("pathlib:Path", (3, 8, 8))


def make_linear():
    return nn.Linear(8, 8)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (make_linear, r"got 'make_linear' \(give what it returns: make_linear\(\)\)"),
        (nn.Identity, r"got 'Identity' \(give what it returns: Identity\(\)\)"),
        (3, r"got one of type int \(resnet50 is such a name\)"),
    ],
)
def test_what_is_neither_a_module_nor_a_name_is_refused(model, told):
    with pytest.raises(CaptureError, match=rf"a model is a torch\.nn\.Module, .*{told}"):
        capture(model, (8,))


def test_wrong_input_shape_names_the_shape_and_the_module():
    with pytest.raises(
        CaptureError, match=r"cannot take a sample of shape \(1, 32, 32\) in stem\.0: .*without the batch"
    ):
        capture(EXAMPLE, (1, 32, 32))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (None, r"Linear needs the shape of one sample: give input_shape \(--input-shape\), for example 3,224,224"),
        ((), r"input_shape of Linear is \(\), .*for example 3,224,224"),
        ((3, 0, 8), r"input_shape of Linear is \(3, 0, 8\), .*for example 3,224,224"),
    ],
)
def test_missing_or_empty_input_shape_shows_an_example(shape, told):
    with pytest.raises(CaptureError, match=told):
        capture(nn.Linear(8, 8), shape)


def test_an_input_of_one_number_a_sample_is_refused_with_its_shape_and_how_to_give_it():
    expected = r"input_shape of step of Linear is \(\), .* \(for example 3,224,224, or 1 for one number\)"
    with pytest.raises(CaptureError, match=expected):
        capture(nn.Linear(8, 8), {"input": (8,), "step": ()})


class DependsOnData(nn.Module):
    """Module with a branch that no static graph can hold."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        y = self.inner(x)
        if y.sum() > 0:
            return y
        return -y


def test_control_flow_on_data_names_the_line_of_the_users_code():
    lines, start = inspect.getsourcelines(DependsOnData.forward)
    (line,) = [start + offset for offset, text in enumerate(lines) if "if y.sum()" in text]
    with pytest.raises(
        CaptureError, match=rf"control flow that depends on data.*, at {re.escape(__file__)}:{line}: .*torch\.where"
    ):
        capture(DependsOnData(), (8,))


class DependsOnDataInside(nn.Module):
    """Module with such a branch two modules deep."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), DependsOnData())

    def forward(self, x):
        return self.body(x)


def test_control_flow_on_data_names_the_module_it_is_in():
    with pytest.raises(
        CaptureError, match=r"DependsOnDataInside has control flow that depends on data in body\.1, at "
    ):
        capture(DependsOnDataInside(), (8,))


class FixesBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x):
        return self.inner(x.view(3, 8))


def test_fixed_batch_is_refused_with_what_to_write_instead():
    with pytest.raises(CaptureError, match=r"FixesBatch fixes its batch to 3 samples.*use x\.shape\[0\]"):
        capture(FixesBatch(), (8,))


def test_a_loss_that_cannot_take_the_outputs_raises():
    # No dimension of classes.
    with pytest.raises(
        CaptureError, match=r"the loss cannot take the outputs of Flat, of shape \(batch,\).*: .*give loss="
    ):
        capture(Flat(), (8,))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 1)

    def forward(self, x):
        return self.inner(x).squeeze(1)


# -- equality ---------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Branches, in-place ReLUs on what a skip connection reads again, BatchNorm; both ways to spell in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.left = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1)
        )
        self.right = nn.Conv2d(8, 8, 1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        y = self.left(x)
        y += self.right(x)
        y = self.relu(y)
        x = self.relu(x + y)
        return self.head(x.mean((2, 3)))


class WithClassToken(nn.Module):
    """ViT in small: a parameter is expanded by the batch, whose size is read from the input."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        batch = x.shape[0]
        x = self.patches(x).reshape(batch, 16, -1).permute(0, 2, 1)
        x = torch.cat([self.token.expand(batch, -1, -1), x], dim=1)
        return self.head(self.block(x)[:, 0])


class SequenceFirst(nn.Module):
    """Steps of the sequence lead, not samples, from the first transposition to the second."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(8, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.after = nn.Linear(8, 4)

    def forward(self, x):
        x = self.before(x.flatten(1).view(-1, 24, 8)).transpose(0, 1)
        x = self.second(self.first(x).relu()).transpose(0, 1)
        return self.after(x.mean(1))


class Auxiliary(nn.Module):
    """Two outputs, as Inception-v3 has in training."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)
        self.side = nn.Linear(8, 4)

    def forward(self, x):
        from torchvision.models.inception import InceptionOutputs

        seen = self.body(x).relu().mean((2, 3))
        return InceptionOutputs(self.head(seen), self.side(seen))


class Scores:
    """Output record of user code, registered as a pytree node as those of transformers are."""

    def __init__(self, logits, features):
        self.logits, self.features = logits, features


pytree.register_pytree_node(
    Scores, lambda scores: ([scores.logits, scores.features], None), lambda values, _: Scores(*values)
)


class OwnRecord(nn.Module):
    """Model that returns its scores in a record of user code."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        features = self.body(x).relu()
        return Scores(self.head(features.mean((2, 3))), features)


class Tied(nn.Module):
    """Model with one weight that two layers use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(192, 192)
        self.second = nn.Linear(192, 192)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x.flatten(1)).relu())


BATCH = 5
"""Tests a batch size other than that of the export."""


def two_branch():
    from examples.two_branch import two_branch

    return two_branch()


@pytest.fixture(
    scope="module",
    params=[Residual, WithClassToken, SequenceFirst, Auxiliary, OwnRecord, Tied, two_branch],
    ids=lambda build: build.__name__,
)
def captured_example(request):
    """(captured model, its weights and buffers, images, target)"""
    torch.manual_seed(0)
    module = request.param()
    model = capture(module, (3, 8, 8))
    return model, copy.deepcopy(module.state_dict()), torch.randn(BATCH, 3, 8, 8), torch.randint(4, (BATCH,))


@pytest.fixture
def example(captured_example):
    """(captured model, images, target); the weights are the same in every test."""
    model, state, x, target = captured_example
    model.source.load_state_dict(state)
    model.source.zero_grad()
    return model, x, target


def gradients(loss, module):
    return dict(zip(dict(module.named_parameters()), torch.autograd.grad(loss, list(module.parameters())), strict=True))


def buffers_after(run, module):
    """Runs and returns (result, running statistics), with the statistics put back as they were."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    result = run()
    after = {name: buffer.clone() for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])
    return result, after


def run_by_segments(model, cuts, x, target):
    """Loss and gradients, segment after segment as a run does it: each starts with detached leaves."""
    program_inputs = [node for node in model.program.graph.nodes if node.op == "placeholder"]
    values = dict(zip(program_inputs, (x, target), strict=True))
    records = []
    for start, stop in zip([0, *cuts], [*cuts, len(model.nodes)], strict=True):
        segment = extract(model, range(start, stop))
        leaves = [values[node].detach() for node in segment.inputs]
        for leaf in leaves:
            leaf.requires_grad_(leaf.is_floating_point())
        outputs = segment.module(x.shape[0], *leaves)
        values.update(zip(segment.outputs, outputs, strict=True))
        records.append((segment, leaves, outputs))
    (loss,) = records[-1][2]
    upstream = {records[-1][0].outputs[0]: torch.ones_like(loss)}
    found = {id(parameter): torch.zeros_like(parameter) for parameter in model.source.parameters()}
    for segment, leaves, outputs in reversed(records):
        parameters = [p for p in segment.module.parameters() if p.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        nodes = [node for node, leaf in zip(segment.inputs, leaves, strict=True) if leaf.requires_grad]
        roots = {node: x for node, x in zip(segment.outputs, outputs, strict=True) if x.requires_grad}
        if not roots:
            continue
        seeds = [upstream[node] for node in roots]
        results = torch.autograd.grad(list(roots.values()), [*wanted, *parameters], seeds, allow_unused=True)
        for node, gradient in zip(nodes, results[: len(nodes)], strict=True):
            upstream[node] = upstream.get(node, 0) + gradient
        for parameter, gradient in zip(parameters, results[len(nodes) :], strict=True):
            if gradient is not None:
                found[id(parameter)] += gradient
    return loss, {name: found[id(parameter)] for name, parameter in model.source.named_parameters()}


def check_same(result, expected):
    loss, grads = result
    expected_loss, expected_grads = expected
    torch.testing.assert_close(loss, expected_loss)
    assert grads.keys() == expected_grads.keys()
    for name, gradient in grads.items():
        torch.testing.assert_close(gradient, expected_grads[name], msg=lambda text, name=name: f"{name}: {text}")


def reference(model, x, target):
    """Returns loss and gradients of plain training of the model."""

    def run():
        loss = classification_loss(model.source(x), target)
        return loss, gradients(loss, model.source)

    return buffers_after(run, model.source)


def test_the_captured_program_equals_the_model_and_its_loss(example):
    model, x, target = example
    expected, statistics = reference(model, x, target)

    def run():
        loss = model.program(x, target)
        return loss, gradients(loss, model.source)

    result, updated = buffers_after(run, model.source)
    check_same(result, expected)
    torch.testing.assert_close(updated, statistics)


def test_layers_run_in_sequence_equal_the_model_and_its_loss(example):
    model, x, target = example
    expected, statistics = reference(model, x, target)
    every_layer = list(range(1, len(model.nodes)))
    result, updated = buffers_after(lambda: run_by_segments(model, every_layer, x, target), model.source)
    check_same(result, expected)
    torch.testing.assert_close(updated, statistics)


def test_layers_pass_on_only_batched_tensors(example):
    model = example[0]
    for index in range(len(model.nodes) - 1):
        for node in extract(model, [index]).outputs:
            # Only a value whose leading dimension is the batch can be split by samples.
            assert str(node.meta["val"].shape[0]) in model.batch_symbols, node


def test_layers_between_two_transpositions_are_one():
    names = [layer.name for layer in capture(SequenceFirst(), (3, 8, 8)).graph.layers]
    # ``before`` ends in the first transposition, ``second`` in the other one.
    assert not {"first", "second"} & set(names)


class ReadTwice(nn.Module):
    """An activation whose input has a second reader."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, padding=1)
        self.side = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.body(x)
        return self.head((self.side(x) + x.relu()).mean((2, 3)))


def test_an_activation_joins_the_layer_before_it_only_if_it_is_its_only_reader():
    operators = {layer.name: layer.operators for layer in capture(ReadTwice(), (3, 8, 8)).graph.layers}
    assert operators["body"] == ("conv2d",)
    assert ("relu",) in operators.values()


def test_stages_cut_anywhere_equal_the_model_and_its_loss(example):
    model, x, target = example
    expected, _ = reference(model, x, target)
    for cut in range(1, len(model.nodes)):
        result, _ = buffers_after(lambda cut=cut: run_by_segments(model, [cut], x, target), model.source)
        check_same(result, expected)


def test_the_program_runs_the_operators_of_its_graph(example):
    # Its nodes are edited after export; code compiled before that would still write in place.
    program = example[0].program
    assert program.code == fx.GraphModule(program, program.graph).code


class WritesView(nn.Module):
    """Reads memory written through a view, or a view of written memory: the graph does not show the aliasing."""

    def __init__(self, through_view):
        super().__init__()
        self.first = nn.Linear(192, 8)
        self.left = nn.Linear(8, 4)
        self.right = nn.Linear(8, 4)
        self.through_view = through_view

    def forward(self, x):
        whole = self.first(x.flatten(1))
        view = whole.view(-1, 2, 4)
        torch.relu_(view if self.through_view else whole)
        # Both hold the same memory, so both are rectified.
        return self.left(whole) + self.right(view.flatten(1))


@pytest.mark.parametrize("through_view", [True, False])
def test_writing_in_place_through_a_view_is_right_or_refused(through_view):
    torch.manual_seed(0)
    try:
        model = capture(WritesView(through_view), (3, 8, 8))
    except CaptureError as error:
        assert "in place" in str(error)
        return
    x, target = torch.randn(BATCH, 3, 8, 8), torch.randint(4, (BATCH,))
    every_layer = list(range(1, len(model.nodes)))
    check_same(run_by_segments(model, every_layer, x, target), reference(model, x, target)[0])


class Masked(nn.Module):
    """GPT-2's mask is made with ``&``, an operator whose name ends as those do that write in place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, 4)

    def forward(self, x):
        flat = x.flatten(1)
        return self.head(torch.where((flat > -1) & (flat < 1), flat, 0.0))


def test_bitwise_and_is_not_taken_for_an_in_place_operator():
    torch.manual_seed(0)
    model, x, target = capture(Masked(), (3, 8, 8)), torch.randn(BATCH, 3, 8, 8), torch.randint(4, (BATCH,))
    torch.testing.assert_close(model.program(x, target), classification_loss(model.source(x), target))


@pytest.mark.slow
def test_program_takes_a_batch_of_one():
    torch.manual_seed(0)
    model = capture(WithClassToken(), (3, 8, 8))
    x, target = torch.randn(1, 3, 8, 8), torch.zeros(1, dtype=torch.int64)
    every_layer = list(range(1, len(model.nodes)))
    check_same(run_by_segments(model, every_layer, x, target), reference(model, x, target)[0])


def test_tied_weight_counts_once():
    model = capture(Tied(), (3, 8, 8))
    weight, bias = 4 * 192 * 192, 4 * 192
    # Each of the two layers synchronises its own gradient of the weight, but the model holds one.
    assert [layer.parameter_bytes for layer in model.graph.layers if layer.parameters] == [weight + bias] * 2
    assert model.graph.parameter_bytes == weight + 2 * bias


class Gated(nn.Module):
    """Parameters that no gradient reaches: behind a detach, in a comparison, without gradients, and read by nothing."""

    def __init__(self):
        super().__init__()
        self.stem, self.gate, self.chosen, self.still, self.tied = (nn.Linear(6, 6) for _ in range(5))
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(self.tied(x))).detach() * (self.chosen(x) > 0)
        with torch.no_grad():
            gate = gate + self.still(x)
        return self.tied(self.stem(x) * gate)


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["operator", "module", "block"])
def test_parameters_that_no_gradient_reaches_are_not_trained(granularity):
    model = Gated()
    layers = capture(model, (6,), granularity=granularity).graph.layers
    cross_entropy = nn.functional.cross_entropy(model(torch.randn(2, 6)), torch.tensor([0, 1]))
    cross_entropy.backward()
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert {name for layer in layers for name in layer.parameters} == reached


def test_capture_leaves_the_model_as_it_was():
    module = Residual()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    capture(module, (3, 8, 8))
    assert module.training
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_a_mode_of_the_caller_is_no_part_of_the_graph(mode):
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    expected = capture(model, (6,))
    with mode():
        found = capture(model, (6,))
    # Without a gradient nothing was saved for the backward; under autocast values had its type.
    assert found.graph == expected.graph
    types = [[node.meta["val"].dtype for group in each.nodes for node in group] for each in (found, expected)]
    assert types[0] == types[1]


def test_weights_are_drawn_from_the_seed():
    first, again, other = (capture(EXAMPLE, seed=seed).source.state_dict() for seed in (3, 3, 4))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.slow
def test_threads_may_capture_at_once() -> None:
    """A picker captures in a thread while a cell does: torch.export's modes of tracing are shared by all threads."""

    def work(_: int) -> int:
        model = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(12)), nn.Flatten(), nn.Linear(192, 4))
        return len(capture(model, (3, 8, 8)).graph.layers)

    with ThreadPoolExecutor(3) as pool:
        assert set(pool.map(work, range(6))) == {work(0)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrap", "advice"),
    [
        (torch.compile, "^OptimizedModule wraps a model: give that one, its ._orig_mod$"),
        (nn.DataParallel, "^DataParallel wraps a model: give that one, its .module$"),
        (torch.jit.script, r"\(give the model before torch\.jit"),
    ],
    ids=["compiled", "data parallel", "script"],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_wrapped_model_is_refused_with_what_to_give_instead(wrap, advice):
    with pytest.raises(CaptureError, match=advice):
        capture(wrap(nn.Linear(8, 2)), (8,))


@pytest.mark.parametrize("shape", [8, (8.0,), (8, 0), np.array([0])], ids=str)
def test_a_shape_without_positive_integers_is_refused(shape):
    with pytest.raises(CaptureError, match=r"input_shape of Linear is .*, expected the positive sizes of one sample"):
        capture(nn.Linear(8, 2), shape)


@pytest.mark.parametrize("seed", [1.5, True, "1", 2**64])
def test_a_seed_that_torch_would_round_or_not_take_is_refused(seed: object) -> None:
    with pytest.raises(InvalidValueError, match="seed must be "):
        capture("alexnet", seed=seed)


def test_a_target_may_be_numpys() -> None:
    assert capture(nn.Linear(4, 2), (4,), target=np.int64(1)).graph == capture(nn.Linear(4, 2), (4,)).graph
