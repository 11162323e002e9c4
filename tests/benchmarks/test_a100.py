"""Both searches on DeepPool's A100 layer times, where somebody has them: a folder named by an environment variable."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.planner.a100 import CLUSTERS, FOLDER_VARIABLE, LIMITS, row
from benchmarks.planner.a100_profiles import MODELS, read_profile
from benchmarks.planner.published import compare
from deeppool.errors import DocumentError
from docs.results import readmes, results

FOLDER = os.environ.get(FOLDER_VARIABLE)
needs_files = pytest.mark.skipif(FOLDER is None, reason=f"no A100 layer times: {FOLDER_VARIABLE} names no folder")


@needs_files
@pytest.mark.parametrize("gpus", [8, 64, 1024])
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", MODELS)
def test_the_exact_search_keeps_every_limit_and_is_never_slower_where_the_published_one_keeps_it(model, cluster, gpus):
    profile = read_profile(Path(FOLDER), model)
    tables = [x for x in results("planner", readmes()["planner"]) if "benchmarks.planner.a100" in x.command]
    (told,) = (x.text.splitlines() for x in tables if (cluster == "dgx-a100") == ("dgx-a100" in x.command))
    for limit in LIMITS:
        found = compare(profile, replace(CLUSTERS[cluster], gpus=gpus), 1024, limit)
        assert row(found) in told
        assert found.exact.over_limit == ()
        if limit is not None:
            assert max(layer.amplification for layer in found.exact.layers) <= limit * (1 + 1e-9)
        if not found.published.over_limit:
            assert found.exact.iteration_time <= found.published.iteration_time * (1 + 1e-12)
        # Where the published plan breaks the limit, at the one that it does keep.
        assert found.as_amplified.iteration_time <= found.published.iteration_time * (1 + 1e-12)
        assert found.as_amplified.over_limit == ()


@needs_files
@pytest.mark.parametrize(
    ("model", "layers", "missing"),
    [
        ("vgg16", 21, 0),
        # The batch normalisation after the first convolution: two numbers for each of 64 channels.
        ("wide_resnet101_2", 37, 128),
        # Convolutions and pools of the file, 11 blocks' concatenations, 2 in each of the last two blocks. Missing
        # are the classifier and two numbers for each of the convolutions' 17,216 channels.
        ("inception_v3", 107 + 11 + 4, 2048 * 1000 + 1000 + 2 * 17_216),
    ],
)
def test_a_profile_has_the_parameters_of_its_model(model, layers, missing):
    import torch
    import torchvision

    options = {"init_weights": False} if model == "inception_v3" else {}
    with torch.device("meta"):
        net = getattr(torchvision.models, model)(**options)
    known = sum(p.numel() for name, p in net.named_parameters() if not name.startswith("AuxLogits"))
    graph = read_profile(Path(FOLDER), model).graph
    assert len(graph.layers) == layers
    assert graph.parameter_bytes == 4 * (known - missing)
    assert read_profile(Path(FOLDER), model, "fp16").graph.parameter_bytes == 2 * (known - missing)


@needs_files
def test_a_convolution_takes_the_backward_that_is_booked_on_its_relu():
    profile = read_profile(Path(FOLDER), "vgg16")
    assert profile.graph.layers[0].operators == ("conv2d", "ReLU2d")
    # Batch 64: 2.157 ms and 4.936 ms in all, of which 2.157 and 1.205 ms are forward.
    first = profile.time(0, 64)
    assert first.total == pytest.approx(7.093e-3)
    assert first.forward == pytest.approx(3.362e-3)
    assert profile.iteration_time(64) == pytest.approx(103.078e-3, rel=1e-3)
    # 64 channels of 224 x 224 pixels.
    assert profile.graph.layers[1].input_bytes == (4 * 64 * 224 * 224,)


@needs_files
def test_only_the_profile_with_estimated_layers_is_called_estimated():
    assert [read_profile(Path(FOLDER), model).provenance for model in MODELS] == ["measured", "measured", "estimated"]


@needs_files
def test_inception_on_eight_gpus_needs_more_than_eight_at_once():
    profile = read_profile(Path(FOLDER), "inception_v3")
    unlimited = compare(profile, replace(CLUSTERS["full-bisection"], gpus=8), 1024, None)
    assert unlimited.published.claim.gpus > 8
    assert unlimited.published.claim.iteration_time < unlimited.published.iteration_time
    assert f"**{unlimited.published.claim.gpus}**" in row(unlimited)


def test_a_folder_without_the_files_is_told_by_name(tmp_path):
    with pytest.raises(DocumentError, match=r"cannot read .*vgg16\.json: .*--profiles names the folder"):
        read_profile(tmp_path, "vgg16")
