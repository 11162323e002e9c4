"""Interpolation between measured sizes, on the authors' A100 layer times, which the project does not hold."""

import os
import statistics
from pathlib import Path

import pytest

from benchmarks.held_out import held_out
from benchmarks.planner.a100_profiles import MODELS, read_profile

FOLDER = os.environ.get("DEEPPOOL_A100_PROFILES")


@pytest.mark.skipif(not FOLDER, reason="DEEPPOOL_A100_PROFILES names no folder with the authors' profiles")
@pytest.mark.parametrize("model", MODELS)
def test_four_measured_sizes_predict_the_others_within_three_percent(model):
    profile = read_profile(Path(str(FOLDER)), model)
    known = {min(size, profile.batch_sizes[-1]) for size in (1, 4, 16, 64)}
    sizes = [size for size in profile.batch_sizes if size not in known]
    assert len(sizes) >= 4
    errors = [error for size in held_out(profile, sizes) for error in size.errors]
    assert statistics.median(errors) <= 0.03
