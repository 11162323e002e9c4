"""Attribution of time to layers on a clock that only operators advance: each layer gets its operators' time."""

from collections import defaultdict

import pytest
import torch
from torch import nn

from deeppool.device.find import find_device
from deeppool.graph.capture.capture import capture
from deeppool.profiling.measure.iteration import Iteration, TimestampLog, copy_weights, example_data

CPU = find_device("cpu")


class Clock:
    """Clock that only operators advance."""

    def __init__(self):
        self.now = 0.0


class _Moves(torch.autograd.Function):
    """Identity function that advances the clock in both passes."""

    @staticmethod
    def forward(ctx, value, clock, forward, backward):
        ctx.clock, ctx.seconds = clock, backward
        clock.now += forward
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.now += ctx.seconds
        return gradient, None, None, None


def timed_by(clock, captured):
    """Operator k of layer i takes 1000 i + k + 1 seconds, twice that backward; returns the layers' sums."""
    expected = {}
    for layer, nodes in enumerate(captured.nodes):
        seconds = [1000 * layer + k + 1 for k in range(len(nodes))]
        for node, taken in zip(nodes, seconds, strict=True):

            def operator(*args, original=node.target, taken=taken, **kwargs):
                return _Moves.apply(original(*args, **kwargs), clock, taken, 2 * taken)

            operator.__name__ = f"timed_{node.name}"
            node.target = operator
        expected[layer] = (sum(seconds), 2 * sum(seconds))
    return expected


def run(captured, clock, stamped=True):
    """Seconds of each layer's forward and backward."""
    iteration = Iteration(captured, copy_weights(captured, CPU), stamped=stamped)
    log = TimestampLog(lambda: clock.now)
    found = {}
    for _ in range(2):  # a tape can be used again
        iteration.run(example_data(captured, 3, CPU), log, "fp32")
        times = defaultdict(lambda: [0.0, 0.0])
        before = log.start
        for direction, layer, now in log.marks:
            times[layer][direction == "backward"] += now - before
            before = now
        found = {layer: tuple(pair) for layer, pair in times.items()}
    return found


class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
        self.head = nn.Linear(64, 2)

    def forward(self, x):
        return self.head(self.body(x))


class Residual(Chain):
    """A value with two readers, whose gradients autograd adds up."""

    def __init__(self):
        super().__init__()
        self.same = nn.Conv2d(4, 4, 1)
        self.other = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = self.body[:3](x)
        x = x + self.other(torch.relu(self.same(x)))
        return self.head(self.body[3:](x))


class Interleaved(Residual):
    """Model of two interleaved branches."""

    def forward(self, x):
        x = self.body[:3](x)
        left, right = self.same(x), self.other(x)
        left, right = left.tanh(), right.sigmoid()
        return self.head(self.body[3:](left * right))


@pytest.mark.parametrize("model", [Chain, Residual, Interleaved])
def test_each_layer_gets_the_time_of_its_own_operators(model):
    captured = capture(model(), (3, 8, 8))
    clock = Clock()
    expected = timed_by(clock, captured)
    assert run(captured, clock) == expected


def test_an_operator_that_returns_its_input_leaves_the_backward_to_the_layer_before():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Flatten(), nn.Linear(4, 2))
    captured = capture(model, (4,), granularity="operator")
    clock, returned = Clock(), {}
    names = [nodes[0].name for nodes in captured.nodes]
    assert names == ["linear", "dropout", "flatten", "linear_1", "cross_entropy_loss"]
    originals = {node: node.target for (node,) in captured.nodes}
    expected = timed_by(clock, captured)
    for layer in (1, 2):
        (node,) = captured.nodes[layer]
        node.target, returned[layer] = originals[node], (0, 0)
    assert run(captured, clock) == expected | returned


def test_the_graph_has_interleaved_branches():
    # What the test above is about: a layer whose operators are not next to one another.
    captured = capture(Interleaved(), (3, 8, 8))
    iteration = Iteration(captured, copy_weights(captured, CPU), stamped=True)
    assert len(iteration.pieces) > len(captured.nodes)


def test_without_stamps_the_whole_passes_are_read():
    captured = capture(Residual(), (3, 8, 8))
    clock = Clock()
    expected = timed_by(clock, captured)
    (times,) = run(captured, clock, stamped=False).values()
    assert times == tuple(sum(pair) for pair in zip(*expected.values(), strict=True))


def test_stamps_change_no_gradient():
    captured = capture(Residual(), (3, 8, 8))
    weights = copy_weights(captured, CPU)
    data = example_data(captured, 3, CPU)
    gradients = []
    for stamped in (True, False):
        iteration = Iteration(captured, weights, stamped=stamped)
        iteration.run(data, TimestampLog(lambda: None), "fp32")
        gradients.append([parameter.grad.clone() for parameter in iteration.parameters])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)
    assert len(gradients[0]) == len(list(captured.source.parameters()))


class MakesItsOwnTensor(nn.Module):
    """Model that makes a tensor with a row per sample on their device, as the first state of a recurrent network."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).to(x.device, torch.float32) + torch.zeros(x.shape[0], 3, device=x.device)


def test_a_tensor_made_by_the_model_is_on_the_measured_device_and_not_on_the_capture_device():
    class Elsewhere:
        def torch_device(self, index=0):
            return torch.device("meta")

    captured, place = capture(MakesItsOwnTensor(), (4,)), Elsewhere()
    iteration = Iteration(captured, copy_weights(captured, place), stamped=False)
    assert iteration.segment.module(2, *example_data(captured, 2, place))[0].device.type == "meta"
    made = [node for node in iteration.segment.module.graph.nodes if "device" in node.kwargs]
    assert [node.kwargs["device"].type for node in made] == ["meta"]
    assert [node.kwargs["device"].type for node in captured.program.graph.nodes if "device" in node.kwargs] == ["cpu"]


def test_an_embedding_is_measured_on_all_of_its_rows():
    # Of two rows alone it would find all in the cache.
    model = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(20, 3))
    captured = capture(model, (5,), input_dtype=torch.int64)
    tokens, target = example_data(captured, 200, CPU)
    assert sorted(set(tokens.flatten().tolist())) == list(range(50))
    assert sorted(set(target.tolist())) == [0, 1, 2]
