"""Batch normalisations on fake tensors: the results that PyTorch finds by computing on real ones."""

import pytest
import torch
from torch import fx
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


def test_an_export_leaves_torch_as_it_was():
    before = (non_strict_utils.FakeTensorMode, fx.config.do_not_emit_stack_traces)
    assert before[0] is FakeTensorMode
    capture(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)), (3, 8, 8), loss=_mean_of_squares)
    with pytest.raises(CaptureError):
        capture(torch.nn.Linear(3, 4), (5,))
    assert (non_strict_utils.FakeTensorMode, fx.config.do_not_emit_stack_traces) == before


def _mean_of_squares(outputs, target):
    return outputs.flatten(1).square().mean(1).mean() + 0 * target.float().mean()
