"""Operators on fake tensors: results in the form, and with the memory, that PyTorch gives them on real ones."""

import itertools

import pytest
import torch
from torch import fx, nn
from torch._export import non_strict_utils
from torch._subclasses.fake_tensor import FakeTensorMode

from deeppool.errors import CaptureError
from deeppool.graph.capture.capture import capture
from deeppool.graph.capture.fake_tensors import ShapesMode

FORMS = {
    "images": ((4, 6, 5, 3), torch.contiguous_format, torch.float32),
    "channels last": ((4, 6, 5, 3), torch.channels_last, torch.float32),
    "volumes": ((2, 6, 3, 4, 5), torch.contiguous_format, torch.float32),
    "features": ((4, 6), torch.contiguous_format, torch.float32),
    "in 16 bits": ((4, 6, 5, 3), torch.contiguous_format, torch.bfloat16),
}


def normalised(shape, layout, dtype, wanted):
    """The results of a batch normalisation and of its backward."""
    channels = shape[1]
    data = torch.ones(shape, dtype=dtype).to(memory_format=layout)
    scale, shift, mean, variance = (torch.ones(channels, dtype=dtype) for _ in range(4))
    forward = torch.ops.aten.native_batch_norm.default(data, scale, shift, mean, variance, True, 0.1, 1e-5)
    saved = [torch.ones(channels, dtype=dtype) for _ in range(2)]
    gradient = torch.ones_like(data)
    backward = torch.ops.aten.native_batch_norm_backward.default(
        gradient, data, scale, mean, variance, *saved, True, 1e-5, wanted
    )
    return (*forward, *backward)


def form(tensor):
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device.type)


@pytest.mark.parametrize("wanted", [[True, True, True], [True, False, False], [False, True, True]], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_batch_normalisations_have_the_results_of_the_real_ones(name, wanted):
    real = [form(x) for x in normalised(*FORMS[name], wanted)]
    with ShapesMode():
        fake = [form(x) for x in normalised(*FORMS[name], wanted)]
    assert fake == real


@pytest.mark.slow
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_for_a_symbolic_batch_are_those_of_torchs_own_way(dtype, layout, monkeypatch):
    activations = (nn.ReLU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh)
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(3, 3, 1), kind(), nn.Linear(4, 4)) for kind in activations),
        *(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(inplace=True), nn.Linear(6, 2, bias=False)),
    ).to(dtype, memory_format=layout)

    def found():
        captured = capture(model, (3, 4, 4), input_dtype=dtype)
        values = [(node.name, node.meta.get("val")) for node in captured.program.graph.nodes]
        return captured.graph, [(n, str(x), str(x.stride())) for n, x in values if isinstance(x, torch.Tensor)]

    ours, taken = ShapesMode._of_symbols, []
    monkeypatch.setattr(ShapesMode, "_of_symbols", lambda *args: taken.append(ours(*args)) or taken[-1])
    here = found()
    expected = 1 if layout is torch.channels_last else len(activations) + 1
    assert sum(result is not None for result in taken) >= expected
    monkeypatch.setattr(ShapesMode, "_of_symbols", lambda *args: None)
    assert here == found()


def test_a_linear_layer_of_another_size_is_refused_for_a_symbolic_batch():
    with pytest.raises(CaptureError, match=r"a and b must have same reduction dim, but got .*6\] X \[5, 2\]"):
        capture(nn.Sequential(nn.Linear(4, 6), nn.Linear(5, 2)), (4,))


def operands():
    """Tensors of one shape, and some that broadcast to it, in many orders of memory."""
    whole = torch.ones(4, 9, 5, 3)
    return {
        "contiguous": whole[:, :6].clone(),
        "channels last": whole[:, :6].to(memory_format=torch.channels_last),
        "some channels": whole[:, 2:8],
        "some channels of channels last": whole.to(memory_format=torch.channels_last)[:, 2:8],
        "transposed": torch.ones(4, 6, 3, 5).transpose(2, 3),
        "every second": torch.ones(4, 6, 5, 6)[..., ::2],
        "expanded": torch.ones(4, 1, 5, 3).expand(4, 6, 5, 3),
        "one pixel": torch.ones(4, 6, 1, 1),
        "one pixel of some channels": torch.ones(4, 9, 1, 1)[:, 2:8],
        "one channel": torch.ones(4, 1, 5, 3),
        "number": torch.tensor(2.0),
        "in 16 bits": torch.ones(4, 6, 5, 3, dtype=torch.bfloat16),
        "integers": torch.ones(4, 6, 5, 3, dtype=torch.int64),
    }


OF_TWO = {
    "add": torch.add,
    "scaled": lambda x, y: torch.add(x, y, alpha=2),
    "mul": torch.mul,
    "greater": torch.gt,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "relu's backward": lambda x, y: torch.ops.aten.threshold_backward.default(x, y, 0),
    "cat": lambda x, y: torch.cat([x, y], 3),
}
OF_ONE = {
    **{name: getattr(torch.nn.functional, name) for name in ("relu", "silu", "gelu", "hardtanh", "hardswish")},
    "sigmoid": torch.sigmoid,
    "by a number": lambda x: x * 2.5,
    "from a number": lambda x: 1 - x,
    "narrow": lambda x: x.narrow(0, 0, 1),
    "transpose": lambda x: x.transpose(0, -1),
    "to double": lambda x: x.double(),
}


def outcome(operator, given):
    """The form of a result, and whether it is on the memory of an operand; None of what cannot be computed."""
    try:
        result = operator(*given)
    except RuntimeError:
        return None
    return *form(result), result.untyped_storage()._cdata in [x.untyped_storage()._cdata for x in given]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TWO)
def test_operators_on_two_tensors_have_the_results_of_the_real_ones(name):
    real = operands()
    kinds = set(real)
    if "backward" in name:
        # A gradient has the dtype of what it is of; of an expanded one PyTorch's own fake result has other strides.
        kinds -= {"in 16 bits", "integers", "expanded"}
    pairs = itertools.product(sorted(kinds), repeat=2)
    expected = {pair: outcome(OF_TWO[name], [real[each] for each in pair]) for pair in pairs}
    computed = [pair for pair, each in expected.items() if each]
    assert len(computed) > 50
    with ShapesMode():
        fake = operands()
        for pair in computed:
            assert outcome(OF_TWO[name], [fake[each] for each in pair]) == expected[pair], pair


@pytest.mark.parametrize("name", OF_ONE)
def test_operators_on_one_tensor_have_the_results_of_the_real_ones(name):
    expected = {each: outcome(OF_ONE[name], [x]) for each, x in operands().items()}
    with ShapesMode():
        for each, x in operands().items():
            if expected[each]:
                assert outcome(OF_ONE[name], [x]) == expected[each], each


def test_an_export_leaves_torch_as_it_was():
    before = (non_strict_utils.FakeTensorMode, getattr(fx.config, "do_not_emit_stack_traces", False))
    assert before[0] is FakeTensorMode
    capture(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)), (3, 8, 8), loss=_mean_of_squares)
    with pytest.raises(CaptureError):
        capture(torch.nn.Linear(3, 4), (5,))
    assert (non_strict_utils.FakeTensorMode, getattr(fx.config, "do_not_emit_stack_traces", False)) == before


def _mean_of_squares(outputs, target):
    return outputs.flatten(1).square().mean(1).mean() + 0 * target.float().mean()
