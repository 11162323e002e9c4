"""Calibration of a device and estimates from it, on the emulated H200, whose time is virtual."""

import random
from dataclasses import replace

import pytest
import torch

import deeppool as dp
from deeppool.device.calibration import SUBSTITUTES
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.profiling.calibrate import calibrate as module
from deeppool.profiling.calibrate.calibrate import calibrate
from deeppool.profiling.calibrate.networks import SampleNetwork, _Convolutions, _Depthwise, sample_networks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """A calibration by two small networks of each of two forms."""
    draw = random.Random(1)
    few = [SampleNetwork(form(draw, 24), (3, 24, 24), (4, 16)) for form in (_Convolutions, _Depthwise) * 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "sample_networks", lambda: iter(few))
        path = tmp_path_factory.mktemp("calibration") / "emulated.json"
        found = calibrate(device="emulated:h200", seconds=0.05, output=path)
    assert dp.load(path) == found
    return found


def test_a_model_that_was_not_measured_takes_what_its_profile_says(calibration):
    captured = dp.capture("resnet18", (3, 64, 64))
    measured = dp.profile(captured, device="emulated:h200", batch_sizes=[8], seconds=0.05)
    estimated = dp.estimate(captured, gpu=calibration, batch_sizes=[8])
    assert estimated.iteration_time(8) == pytest.approx(measured.iteration_time(8), rel=0.25)
    assert (estimated.device, estimated.precision, estimated.provenance) == ("emulated:h200", "fp32", "estimated")
    assert estimated.error == calibration.error
    assert estimated.update_per_byte == calibration.update_per_byte > 0


def test_a_calibration_states_the_error_of_networks_that_it_was_not_fitted_to(calibration):
    assert 0 < calibration.error < 0.5
    assert f"{100 * calibration.error:.0f} %" in str(calibration)


def test_the_networks_are_the_same_every_time_and_leave_random_numbers_alone():
    before = torch.random.get_rng_state()
    first, second = ([dict(network.model.state_dict()) for network in list(sample_networks())[-2:]] for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_another_precision_than_the_calibrated_one_is_refused(calibration):
    with pytest.raises(
        InvalidValueError, match=r"calibrated in fp32, not in bf16 \(deeppool calibrate --precision bf16"
    ):
        dp.estimate("resnet18", gpu=calibration, precision="bf16")


def test_a_calibration_without_a_family_that_stands_for_others_is_refused(calibration):
    for name in SUBSTITUTES.values():
        with pytest.raises(InvalidValueError, match=f"costs hold no {name}"):
            replace(calibration, costs=tuple(cost for cost in calibration.costs if cost.family != name))


def test_a_file_that_is_neither_data_sheet_nor_calibration_is_refused(tmp_path):
    dp.save(dp.find_profile("resnet50-cpu"), tmp_path / "profile.json")
    with pytest.raises(DocumentError, match="profile"):
        dp.estimate("resnet18", gpu=tmp_path / "profile.json")
