"""``deeppool plan --memory``: from a model to a plan that fits, or one line that says why none does."""

import json

import pytest

from deeppool.base import serialization
from deeppool.cli.options import memory_size
from deeppool.cluster.cluster import find_cluster
from tests.strategies import make_graph, profile_from_times


@pytest.fixture
def profile_file(tmp_path):
    """conv splits for free and keeps 1 MB a sample; fc prefers one GPU and keeps 3 MB."""
    graph = make_graph([(), (0,)], [(), (0,)], [0, 10**6], [10**6, 3 * 10**6])
    profile = profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: 1e-3 if b == 16 else 2e-3])
    return serialization.write(profile, tmp_path / "profile.json")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """Bad usage is told in a box as wide as the terminal."""
    monkeypatch.setenv("COLUMNS", "200")


def test_plan_prints_what_each_gpu_holds(deeppool, profile_file):
    code, out, err = deeppool("plan", profile_file, "--gpus", 2, "--global-batch", 16, "--cluster", "dgx-a100")
    assert (code, err) == (0, "")
    # 3 x 1 MB of parameters, 8 x 1 MB and 16 x 3 MB of activations.
    assert "memory of 37.3 GiB with optimizer momentum:\n  GPU 0: 56.3 MiB (parameters 976.6 KiB," in out
    assert "most: layer1 48.6 MiB at per-GPU batch 16" in out
    assert "  GPU 1: 7.6 MiB (activations 7.6 MiB); most: layer0 7.6 MiB at per-GPU batch 8" in out


def test_less_memory_gives_another_plan_and_json_says_what_it_takes(deeppool, profile_file, tmp_path):
    arguments = ("plan", profile_file, "--gpus", 2, "--global-batch", 16, "--cluster", "dgx-a100")
    code, out, err = deeppool(*arguments, "--memory", "50MB", "--optimizer", "sgd", "--json", "-o", tmp_path / "p.json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [layer["gpu_count"] for layer in found["layers"]] == [2, 2]
    assert (found["optimizer"], found["cluster"]["memory"]) == ("sgd", 50e6)
    (use,) = found["memory"]
    assert use["gpus"] == [0, 1]
    assert (use["total"], use["optimizer_state"], use["activations"]) == (34 * 10**6, 0, 32 * 10**6)
    assert use["heaviest"][0] == {
        "name": "layer1",
        "batch": 8,
        "parameters": 2 * 10**6,
        "activations": 24 * 10**6,
        "received": 0,
        "total": 26 * 10**6,
    }
    assert json.loads((tmp_path / "p.json").read_text()) == found


def test_a_frontier_with_a_background_takes_memory_and_optimizer(deeppool, profile_file):
    arguments = ("frontier", profile_file, "--gpus", 2, "--global-batch", 16, "--background", profile_file)
    code, out, _ = deeppool(*arguments, "--memory", "35.5MB", "--json")
    assert code == 0
    found = [(point["gpus"], point["iteration_time"]) for point in json.loads(out)["data_parallel_partitions"]]
    # Of one GPU in two micro-steps, which takes longer than the 17 ms of the whole batch.
    assert found == [(1, pytest.approx(0.02)), (2, pytest.approx(0.0115))]
    code, out, err = deeppool(*arguments, "--memory", "35.5MB", "--optimizer", "adam")
    assert (code, out) == (1, "")
    assert err.startswith("error: no static partition of 2 GPUs holds drawn: with data parallelism on all of them")


def test_too_little_memory_is_one_line_and_exit_code_1(deeppool, profile_file):
    code, out, err = deeppool("plan", profile_file, "--gpus", 2, "--global-batch", 16, "--memory", "30 MB")
    assert (code, out) == (1, "")
    assert err.startswith(
        "error: no plan of drawn fits: in the smallest one found GPU 0 needs 33.4 MiB, 4.8 MiB more than "
    )
    assert "(data parallelism fits from 3 GPUs, or on 2 up to a global batch of 12, such as 8 with " in err


def test_loopback_checks_nothing_until_memory_is_given(deeppool, profile_file):
    assert find_cluster("loopback", 2).memory is None
    code, out, _ = deeppool("plan", profile_file, "--gpus", 2, "--global-batch", 16)
    assert code == 0
    assert "memory with optimizer momentum:" in out


def test_profile_that_does_not_know_says_so(deeppool, tmp_path):
    path = serialization.write(profile_from_times(make_graph([()]), [lambda b: 1e-3 * b]), tmp_path / "old.json")
    code, out, _ = deeppool("plan", path, "--gpus", 2, "--global-batch", 16)
    assert code == 0
    assert "memory is unknown: the profile does not say what layers keep for the backward (profile again)" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [("40GB", 40e9), ("37.5 GiB", 37.5 * 2**30), ("512mb", 512e6), ("1MiB", 2**20), ("1000B", 1000.0), (None, None)],
)
def test_sizes_are_decimal_or_binary_as_they_are_spelled(text, expected):
    assert memory_size(text) == expected


@pytest.mark.parametrize("text", ["40", "GB", "-1GB", "40 GBit", "1.2.3GB", ""])
def test_text_that_is_no_size_is_bad_usage(deeppool, profile_file, text):
    code, out, err = deeppool("plan", profile_file, "--gpus", 2, "--global-batch", 16, f"--memory={text}")
    assert (code, out) == (2, "")
    assert "--memory takes a size such as 40GB or 37.5GiB" in err


def test_zero_bytes_are_refused(deeppool, profile_file):
    code, _, err = deeppool("plan", profile_file, "--gpus", 2, "--global-batch", 16, "--memory", "0GB")
    assert (code, err) == (1, "error: memory must be positive, got 0 bytes (None: unknown)\n")
