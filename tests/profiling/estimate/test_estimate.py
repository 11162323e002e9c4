"""Estimated profiles of absent GPUs: valid, marked, usable by the planner, rejected if impossible."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.device.datasheet import gpu_sheet
from deeppool.errors import InvalidValueError
from deeppool.profiling.estimate.estimate import VIEW, estimate
from tests.sampling import sampled

BATCHES = (1, 2, 8, 64)


class NextToken(nn.Module):
    """The score of the token after the last one."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits[:, -1]


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=32, use_cache=False)
    return dp.capture(NextToken(transformers.GPT2LMHeadModel(config).train()), (16,), input_dtype=torch.int64)


MODELS = {
    "vgg16": lambda: dp.capture("vgg16"),
    # With its auxiliary head, whose last normalisation sees one number a channel at batch 1.
    "inception_v3": lambda: dp.capture("inception_v3"),
    "vit_b_16": lambda: dp.capture("vit_b_16"),
    "gpt2": gpt2,
}


@cache
def captured(name):
    return MODELS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("model", sampled(MODELS, "vgg16", "gpt2"))
def test_a_profile_is_estimated_throughout_and_never_gets_faster_with_the_batch(model):
    found = estimate(captured(model), gpu="a100-40", batch_sizes=BATCHES)
    assert (found.provenance, found.device, found.device_name) == ("estimated", "cuda", "NVIDIA A100 SXM4 40GB")
    assert found.batch_sizes == BATCHES
    assert "estimated, median error 11 %, on NVIDIA A100 SXM4 40GB" in str(found)
    for measurement in found.measurements:
        for times in (measurement.forward, measurement.backward):
            assert list(times) == sorted(times)
    for small, large in pairwise(BATCHES):
        # Never better than in proportion, and always more work: a larger batch shares the launches and the weights.
        assert found.iteration_time(small) < found.iteration_time(large)
        assert found.iteration_time(large) <= found.iteration_time(small) * large / small * 1.0001


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["a100-80", "h100", "rtx4090", "l4"])
def test_sixteen_bits_are_faster_on_large_batches_and_the_method_states_its_known_error(gpu):
    model = captured("vgg16")
    wide, narrow = (estimate(model, gpu=gpu, batch_sizes=[64], precision=p) for p in ("tf32", "bf16"))
    assert narrow.iteration_time(64) < wide.iteration_time(64)
    for profile, median in ((wide, 0.11), (narrow, 0.06)):
        assert profile.error == median
        assert f"± {100 * median:.0f} % in the median" in profile.method
        assert ("was not among these GPUs" in profile.method) == (gpu != "a100-80")
        assert "nothing was run" in profile.method
        assert f"estimated, median error {100 * median:.0f} %, on" in str(profile)


def test_thirty_two_bits_without_tf32_are_slower():
    model = captured("vgg16")
    plain, fast = (estimate(model, gpu="a100-40", batch_sizes=[64], precision=p) for p in ("fp32", "tf32"))
    assert fast.iteration_time(64) < plain.iteration_time(64) / 2
    assert "products in tf32" in fast.method


def test_a_plan_whose_gain_is_within_the_error_of_its_estimates_says_so():
    found = estimate(captured("vgg16"), gpu="a100-40", batch_sizes=BATCHES)
    slow = dp.Link(2e10, 1e-5, "made by hand")
    cluster = dp.Cluster(gpus=8, gpus_per_node=8, inside=slow, between=slow)
    plan = dp.plan(found, cluster=cluster, global_batch=64)
    gain = plan.comparison.gain - 1
    sure, unsure = (
        dp.plan(replace(found, error=error), cluster=cluster, global_batch=64) for error in (gain * 0.99, gain * 1.01)
    )
    assert "within the median error" not in str(sure)
    assert plan.comparison.fastest.gpus == 4
    assert f"the gain over data parallelism on 4 GPUs, {100 * gain:.1f} %, is within the median error" in str(unsure)
    assert unsure.error == gain * 1.01


def test_a_plan_from_estimates_is_marked_and_a_saved_profile_is_equal(tmp_path):
    found = estimate(captured("vgg16"), gpu="a100-40", batch_sizes=BATCHES, output=tmp_path / "vgg16.json")
    assert dp.load(tmp_path / "vgg16.json") == found
    plan = dp.plan(found, cluster=dp.Cluster(gpus=8), global_batch=64, amplification_limit=2.0)
    assert plan.provenance == "estimated"
    assert "layer times estimated for NVIDIA A100 SXM4 40GB, median error 11 %" in str(plan)
    assert "layer times estimated" in " ".join(plan.explain().split())
    assert "estimated layer times" in dp.figures.layers(plan).layout.title.subtitle.text


def test_a_layer_that_is_only_a_view_scales_perfectly():
    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(x.view(x.shape[0], 8))

    found = estimate(dp.capture(Viewed(), (2, 4)), gpu="h100", batch_sizes=[1, 4])
    (view,) = (index for index, layer in enumerate(found.graph.layers) if layer.operators == ("view",))
    assert found.time(view, 1).total == pytest.approx(VIEW)
    assert found.time(view, 4).total == pytest.approx(4 * VIEW)


@pytest.mark.slow
def test_a_layer_that_copies_nothing_of_one_sample_alone_is_estimated():
    class Summarised(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(32, 2)

        def forward(self, x):
            # The states come sequence first: one sample of them is contiguous, several are not.
            states, _ = self.lstm(x)
            return self.head(torch.cat([states.mean(1), states.flatten(1)], 1))

    found = estimate(dp.capture(Summarised(), (3, 4)), gpu="h100", batch_sizes=[1, 2, 4])
    (copy,) = (index for index, layer in enumerate(found.graph.layers) if layer.operators == ("flatten",))
    assert found.time(copy, 1).total == pytest.approx(VIEW)
    assert 4 * VIEW < found.time(copy, 2).total < found.time(copy, 4).total


def test_an_update_is_estimated_from_the_bandwidth_of_an_own_data_sheet():
    sheet = replace(gpu_sheet("a100-80"), name="own", title="Accelerator of our own", bandwidth=8e12)
    found = estimate(captured("vgg16"), gpu=sheet, batch_sizes=[1])
    assert found.update_seconds_per_byte == 5 / 8e12
    assert "update of all parameters: 346 us, estimated" in found.explain()


def test_progress_counts_the_batch_sizes():
    calls = []
    estimate(captured("vgg16"), gpu="h200", batch_sizes=[1, 2, 8, 64], on_progress=lambda *call: calls.append(call))
    assert calls[0] == ("kernels at batch 1", 0.0)
    assert [share for _, share in calls] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_invalid_arguments_raise_in_one_line(tmp_path):
    with pytest.raises(InvalidValueError, match="no data sheet of the GPU 'tpu'"):
        estimate("vgg16", gpu="tpu", output=tmp_path / "x.json")
    with pytest.raises(InvalidValueError, match=r"batch_sizes must be positive numbers, got \[0\]"):
        estimate("vgg16", gpu="h100", batch_sizes=[0])
    with pytest.raises(InvalidValueError, match="precision must be one of fp32, tf32, bf16, fp16 or None, got 'int8'"):
        estimate("vgg16", gpu="h100", precision="int8")
    with pytest.raises(InvalidValueError, match=r"of Tesla V100-SXM2-32GB multiply no bf16 numbers \(take fp16\)"):
        estimate("vgg16", gpu="v100", precision="bf16", output=tmp_path / "x.json")
    with pytest.raises(InvalidValueError, match=r"got \[1\.5, 2\] \(whole ones, for example 1,2,4,8\)"):
        estimate("vgg16", gpu="h100", batch_sizes=[1.5, 2])
    with pytest.raises(
        InvalidValueError, match=r"of fp64 and of complex numbers cannot be estimated: addmm, mm \(model\.float"
    ):
        estimate(nn.Linear(8, 2).double(), (8,), gpu="h100", output=tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_only_products_of_wide_numbers_have_no_known_rate():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 2)

        def forward(self, x):
            return self.inner(x).double().cumsum(-1).float()

    assert estimate(Sums(), (8,), gpu="h100").provenance == "estimated"


def test_sizes_may_be_numbers_of_numpy(tmp_path):
    path = tmp_path / "profile.json"
    found = estimate(nn.Linear(8, 2), np.array([8]), gpu="h100", batch_sizes=np.array([1, 4]), output=path)
    assert dp.load(path) == found == estimate(nn.Linear(8, 2), (8,), gpu="h100", batch_sizes=(4, 1))
