"""Operators, modules and blocks as layers: three partitions of one program, each within the next."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.extract import extract
from deeppool.graph.capture.losses import classification_loss
from deeppool.planning.planner import plan
from deeppool.profiling.measure.profile import profile
from deeppool.simulation.plan.simulate import simulate
from tests.graph.capture.test_capture import BATCH, check_same, gradients, run_by_segments

GRANULARITIES = ("operator", "module", "block")


class Bottleneck(nn.Module):
    """A residual block; the second one of a stage."""

    def __init__(self, width):
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)

    def forward(self, x):
        return torch.relu(x + self.norm(self.wide(self.narrow(x).relu())))


class Pair(nn.Module):
    """Two convolutions side by side, as in an inception module."""

    def __init__(self, width):
        super().__init__()
        self.left, self.right = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.cat([self.left(x).relu(), self.right(x)], 1)


class Shrink(nn.Module):
    """Module that occurs once, next to blocks that repeat."""

    def __init__(self, width):
        super().__init__()
        self.convolution, self.pool = nn.Conv2d(width, width // 2, 1), nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(self.convolution(x)) * 2


class Stage(nn.Module):
    """A series of blocks, called as a module of its own."""

    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList([Bottleneck(width), Bottleneck(width)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Blocks(nn.Module):
    """Two stages of two residual blocks, two inception modules, and a module next to them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = Stage(8)
        self.pairs = nn.Sequential(Pair(8), Shrink(16), Pair(8))
        self.second = Stage(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.second(self.pairs(self.first(self.stem(x)))).mean((2, 3)))


class SequenceFirst(nn.Module):
    """Positions lead, not samples, from one transposition to the other, beside a branch that stays with samples."""

    def __init__(self):
        super().__init__()
        self.before, self.inside, self.beside, self.after = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        x = self.before(x.flatten(1).view(-1, 24, 8))
        y = x.transpose(0, 1)
        z = self.beside(x).relu()
        return self.after((self.inside(y).relu().transpose(0, 1) + z).mean(1))


@pytest.fixture(scope="module", params=[Blocks, SequenceFirst], ids=lambda build: build.__name__)
def three(request):
    """Captures one model at three granularities, the finest first."""
    torch.manual_seed(0)
    model = request.param()
    return [capture(model, (3, 8, 8), granularity=granularity) for granularity in GRANULARITIES]


def partition(captured):
    """Per layer the names of its nodes, which are the same in each capture of one model."""
    return [frozenset(node.name for node in nodes) for nodes in captured.nodes]


@pytest.mark.slow
def test_three_granularities_partition_the_same_operators_and_each_refines_the_next(three):
    finest = partition(three[0])
    for captured in three:
        layers = partition(captured)
        assert sum(map(len, layers)) == len(frozenset().union(*layers))
        assert frozenset().union(*layers) == frozenset().union(*finest)
    for fine, coarse in pairwise(map(partition, three)):
        for layer in fine:
            assert sum(layer <= other for other in coarse) == 1


@pytest.mark.slow
def test_parameters_are_the_same_bytes_at_every_granularity(three):
    expected = sum(p.numel() * p.element_size() for p in three[0].source.parameters())
    for captured in three:
        assert sum(layer.parameter_bytes for layer in captured.graph.layers) == expected
        assert captured.graph.parameter_bytes == expected


def test_graphs_record_their_granularity_and_differ_in_fingerprint_if_their_layers_do(three):
    assert [captured.graph.granularity for captured in three] == list(GRANULARITIES)
    partitions = {tuple(partition(captured)) for captured in three}
    # Nothing repeats in SequenceFirst: its modules are not joined to blocks.
    assert len(partitions) == (3 if type(three[0].source) is Blocks else 2)
    assert len({captured.graph.fingerprint for captured in three}) == len(partitions)


def test_layers_of_every_granularity_run_in_sequence_equal_the_model(three):
    torch.manual_seed(1)
    x, target = torch.randn(BATCH, 3, 8, 8), torch.randint(4, (BATCH,))
    for captured in three:
        loss = classification_loss(captured.source(x), target)
        expected = loss, gradients(loss, captured.source)
        check_same(run_by_segments(captured, list(range(1, len(captured.nodes))), x, target), expected)


def test_blocks_are_the_repeated_modules_and_those_next_to_them():
    graph = capture(Blocks(), (3, 8, 8), granularity="block").graph
    assert [layer.name for layer in graph.layers] == [
        "stem",
        # The stages repeat too, but each is a series of blocks.
        "first.blocks.0",
        "first.blocks.1",
        # Its branches go side by side, so the pair is one block.
        "pairs.0",
        "pairs.1",
        "pairs.2",
        "second.blocks.0",
        "second.blocks.1",
        "head",
    ]
    # A chain: branches and residual connections are inside.
    assert [layer.predecessors for layer in graph.layers] == [(), *((index,) for index in range(8))]
    assert graph.layers[1].signature == graph.layers[2].signature != graph.layers[6].signature


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "layers", "block"),
    [
        # 16 bottlenecks; the stem and its pooling before, pooling and the classifier after.
        ("resnet50", (3, 32, 32), 20, "layer3.5"),
        # Nothing repeats: each module is a layer.
        ("alexnet", (3, 64, 64), 12, "features.0"),
        pytest.param("vgg16", (3, 32, 32), 22, "features.0", marks=pytest.mark.stress),
        # 4 dense blocks, which are not series-parallel inside, and 3 transitions; two layers before, two after.
        pytest.param("densenet121", (3, 32, 32), 11, "features.denseblock3", marks=pytest.mark.stress),
    ],
)
def test_blocks_of_known_models(name, shape, layers, block):
    graph = capture(name, shape, granularity="block").graph
    names = [layer.name for layer in graph.layers]
    assert block in names
    assert len(names) == layers
    assert not any(other.startswith(block + ".") for other in names)


def test_every_operator_is_a_layer_where_samples_can_be_split():
    captured = capture(Blocks(), (3, 8, 8), granularity="operator")
    assert {len(nodes) for nodes in captured.nodes} == {1}


def test_granularity_must_be_one_of_three():
    with pytest.raises(InvalidValueError, match=r"granularity must be one of operator, module, block, got 'layer'"):
        capture(Blocks(), (3, 8, 8), granularity="layer")


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["operator", "block"])
def test_layers_of_other_granularities_are_measured_planned_and_simulated(granularity):
    captured = capture(Blocks(), (3, 8, 8), granularity=granularity)
    made = plan(profile(captured, device="cpu", batch_sizes=[1, 4], seconds=0.1), Cluster(4), 4)
    assert made.granularity == granularity
    assert len(made.layers) == len(captured.nodes)
    assert simulate(made).iteration_time == pytest.approx(made.iteration_time)


class OneMask(nn.Module):
    """Drops samples twice by one random mask."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(192, 8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        keep = (torch.rand(x.shape[0], 1) > 0.5).float()
        return self.head(self.second(self.first(x.flatten(1)) * keep) * keep)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_readers_of_one_random_mask_are_one_layer(granularity):
    captured = capture(OneMask(), (3, 8, 8), granularity=granularity)
    masked = [layer for layer in captured.graph.layers if "mul" in layer.operators]
    assert [layer.operators.count("mul") for layer in masked] == [2]


def test_layers_of_every_granularity_pass_on_only_batched_tensors(three):
    for captured in three:
        for index in range(len(captured.nodes) - 1):
            for node in extract(captured, [index]).outputs:
                # Only a value whose leading dimension is the batch can be split by samples.
                assert str(node.meta["val"].shape[0]) in captured.batch_symbols, node
