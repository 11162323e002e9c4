"""How far estimates are off, on A100 layer times that somebody has: a folder named by an environment variable."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks.estimates.a100_layers import BLOCKS, MODELS, read_layers
from benchmarks.estimates.fit import A100, Table, nelder_mead, tiled
from benchmarks.estimates.main import LONG, Fits, accuracy_table, errors, held_out, whole
from benchmarks.planner.a100 import FOLDER_VARIABLE
from deeppool.device.roofline import FITTED
from deeppool.errors import DocumentError

FOLDER = os.environ.get(FOLDER_VARIABLE)
needs_files = pytest.mark.skipif(FOLDER is None, reason=f"no A100 layer times: {FOLDER_VARIABLE} names no folder")
# Some of the files' batches, for the sake of time; the README's table has all.
BATCHES = (1, 2, 8, 32, 64)


@cache
def samples():
    return {model: read_layers(Path(FOLDER), model, BATCHES) for model in (*MODELS, BLOCKS)}


@cache
def fits(model):
    return Fits.without(samples(), model)


@needs_files
@pytest.mark.parametrize("model", MODELS)
def test_long_layers_of_a_model_not_fitted_on_are_within_fifteen_per_cent_in_the_median(model):
    long = [sample for sample in whole(samples()[model]) if sample.seconds > LONG]
    simplest, simpler, fitted = fits(model).models()
    median, most = errors(fitted, long)
    assert median < 0.10
    assert most < 0.25
    # And beside what is simpler, fitted to the same.
    assert median < errors(simpler, long)[0] / 2
    assert median < errors(simplest, long)[0] / 4


@needs_files
def test_whole_blocks_of_a_model_not_fitted_on_are_as_close():
    # Normalisations, activations and sums beside convolutions; no such operator alone is in what was fitted.
    median, most = errors(tiled(fits("WideResNet-101-2").efficiency), samples()[BLOCKS])
    assert median < 0.12
    assert most < 0.25


@needs_files
def test_the_coefficients_in_the_code_are_those_of_the_files():
    everything = held_out(samples(), None)
    table = Table.of(everything)
    models = tiled(fits(None).efficiency), tiled(FITTED)
    refitted, kept = (model(table, A100) for model in models)
    # Some of the batches only, so not the very same; a coefficient that was mistyped shows.
    assert np.median(np.abs(kept / refitted - 1)) < 0.03
    assert errors(models[1], everything)[0] < errors(models[0], everything)[0] * 1.1


@needs_files
def test_a_held_out_model_leaves_none_of_its_layers_behind():
    kept = held_out(samples(), "VGG-16")
    assert {sample.model for sample in kept} == {"WideResNet-101-2", "Inception-v3"}
    own = {sample.layer for sample in samples()["VGG-16"]}
    assert not {sample.layer for sample in kept} & own
    # A convolution of 512 to 512 channels of 14 x 14 pixels, in WideResNet without the ReLU.
    assert own & {sample.layer for sample in samples()["WideResNet-101-2"]}


@needs_files
def test_gradients_are_accumulated_in_the_files():
    # 411 MB of weights: read for the data's gradient, written for their own, and three passes to add that.
    (first,) = (
        x for x in samples()["VGG-16"] if "'in_features': 25088" in x.layer and x.batch == 1 and x.part == "backward"
    )
    passes = first.seconds * A100.bandwidth * A100.reach.bandwidth / (4 * 25088 * 4096)
    assert passes == pytest.approx(5, abs=0.2)


@needs_files
def test_the_table_has_every_split_beside_the_simpler_models():
    lines = list(accuracy_table(samples(), {model: fits(model) for model in (*MODELS, None)}))
    assert lines[0].count("|") == 7
    assert all(line.count(" / ") == 3 for line in lines[2:])
    assert sum("over 100 us" in line for line in lines) == 13


def test_the_simplex_finds_the_minimum_of_a_crooked_valley():
    def rosenbrock(x):
        return float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)

    assert nelder_mead(rosenbrock, np.array([-1.2, 1.0]), 0.3) == pytest.approx([1, 1], abs=1e-2)


def test_a_folder_without_the_files_is_told_by_name(tmp_path):
    with pytest.raises(DocumentError, match=r"cannot read .*vgg16\.json: .*--profiles names the folder"):
        read_layers(tmp_path, "VGG-16")
