"""Forms of results that are known without torch's shape functions are the same."""

import pytest
import torch

from deeppool.device.emulated import shapes
from deeppool.device.emulated.shapes import ShapeInference


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", [(4, 6, 5, 3), (4, 1, 2, 2)], ids=str)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("wanted", [[True, True, True], [True, False, True]], ids=str)
def test_batch_normalisations_have_the_forms_of_torchs_shape_functions(shape, layout, train, wanted, monkeypatch):
    aten, data = torch.ops.aten, torch.empty(shape).to(memory_format=layout)
    scale, shift, mean, variance = (torch.ones(shape[1]) for _ in range(4))
    calls = [
        (aten.native_batch_norm.default, (data, scale, shift, mean, variance, train, 0.1, 1e-5)),
        (
            aten.native_batch_norm_backward.default,
            (data, data, scale, mean, variance, mean, variance, train, 1e-5, wanted),
        ),
    ]
    plain = data.is_contiguous() and train
    assert (shapes._of_batch_norm(*calls[0]) is not None) is plain
    assert (shapes._of_batch_norm(*calls[1]) is not None) is (plain and all(wanted))

    def found():
        inference = ShapeInference()
        return [inference.results(operator, args, {}, computes=False) for operator, args in calls]

    here = found()
    monkeypatch.setattr(shapes, "_of_batch_norm", lambda *_: None)
    assert here == found()
