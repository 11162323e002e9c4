"""Layer times of an evaluation's models: named where there are files, estimated elsewhere."""

import pytest

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.evaluation.profiles import find_profiles

EXAMPLE = "examples.two_branch:two_branch"


@pytest.mark.usefixtures("in_the_checkout")
def test_a_named_profile_is_taken_and_another_estimated_up_to_its_global_batch() -> None:
    found = find_profiles(
        {"vgg16": [3, 224, 224], EXAMPLE: [3, 32, 32]},
        {"vgg16": 32, EXAMPLE: 6},
        gpu="a100-40",
        precision="fp16",
        files={"vgg16": "vgg16-cpu"},
    )
    assert list(found) == ["vgg16", EXAMPLE]
    assert found["vgg16"] == dp.find_profile("vgg16-cpu")
    assert found[EXAMPLE].batch_sizes == (1, 2, 4, 6)
    assert (found[EXAMPLE].provenance, found[EXAMPLE].precision) == ("estimated", "fp16")


def test_a_gpu_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="gpu"):
        find_profiles({"vgg16": [3, 64, 64]}, {"vgg16": 2}, gpu="abacus", precision="fp32")
