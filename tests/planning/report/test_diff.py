"""Differences of two plans: every change named once, and the parts add up."""

import dataclasses
import inspect
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import deeppool as dp
from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.buckets import ONE_BUCKET
from deeppool.errors import PlanError
from deeppool.planning.evaluate.memory import MemoryUse
from deeppool.planning.goal import GoalBackground
from deeppool.planning.report.diff import RequestChange, TotalChange, diff
from deeppool.records import files
from tests.figures.records import layer, plan_of, two_layer_plan
from tests.planning.search.test_search import LIMITS
from tests.planning.searched import plan
from tests.sampling import examples
from tests.strategies import problems


def moved_plan():
    """As two_layer_plan, with conv on two of the four GPUs and fc on GPU 3.

    conv computes 30 ms longer and synchronises 0.5 ms less; fc computes as long and pays 1 ms more for its inputs.
    """
    fc = layer("fc", 1, forward=0.005, backward=0.008, reshard=0.003)
    return plan_of(
        layer("conv", 2, forward=0.020, backward=0.040, sync=0.0005, single_gpu_time=0.100),
        dataclasses.replace(fc, gpus=(3,)),
        limit=None,
    )


def test_a_moved_layer_reports_which_part_of_its_time_changed():
    changes = diff(two_layer_plan(), moved_plan())
    conv, fc = changes.layers
    assert (conv.name, conv.before.gpus, conv.after.gpus) == ("conv", (0, 1, 2, 3), (0, 1))
    assert (conv.before.time, conv.after.time) == pytest.approx((0.031, 0.0605))
    assert (conv.change, conv.compute, conv.reshard, conv.sync) == pytest.approx((0.0295, 0.030, 0, -0.0005))
    assert (fc.name, fc.before.gpus, fc.after.gpus) == ("fc", (0,), (3,))
    assert (fc.change, fc.compute, fc.reshard, fc.sync) == pytest.approx((0.001, 0, 0.001, 0))
    assert changes.unchanged_layers == 0
    assert changes.request == (RequestChange("amplification_limit", 2.0, None),)


def test_totals_are_those_of_the_two_plans():
    before, after = two_layer_plan(), moved_plan()
    changes = diff(before, after)
    assert changes.iteration_time == TotalChange(
        before.iteration_time, after.iteration_time, after.iteration_time - before.iteration_time
    )
    # conv held four GPUs for 31 ms and fc one for 15; now two for 60.5 and one for 16.
    assert changes.gpu_seconds.before == pytest.approx(4 * 0.031 + 0.015)
    assert changes.gpu_seconds.after == pytest.approx(2 * 0.0605 + 0.016)
    assert (changes.amplification.before, changes.amplification.after) == (before.amplification, after.amplification)


@examples(60)
@given(problems(), st.sampled_from(LIMITS), st.sampled_from(LIMITS))
def test_each_layer_is_either_unchanged_or_changed_by_the_sum_of_its_parts(problem, limit, other):
    before, after = plan(*problem, limit), plan(*problem, other)
    changes = diff(before, after)
    by_name = {change.name: change for change in changes.layers}
    assert len(by_name) + changes.unchanged_layers == len(before.layers)
    for old, new in zip(before.layers, after.layers, strict=True):
        change = by_name.get(old.name)
        if change is None:
            # Here a layer's own GPUs and those of the layers it reads decide its time.
            assert (new.gpus, new.time) == (old.gpus, pytest.approx(old.time, rel=1e-9))
            continue
        assert old.gpus != new.gpus or old.time != new.time
        assert change.change == pytest.approx(new.time - old.time)
        rounding = 1e-12 * (old.time + new.time)
        assert change.change == pytest.approx(change.compute + change.reshard + change.sync, abs=rounding)
        assert change.before.amplification == old.amplification
        assert change.after.amplification == new.amplification
    assert (changes.request == ()) == (limit == other)


@examples(30)
@given(problems(), st.sampled_from(LIMITS))
def test_a_plan_does_not_differ_from_itself(problem, limit):
    made = plan(*problem, limit)
    changes = diff(made, plan(*problem, limit))
    assert (changes.layers, changes.request) == ((), ())
    assert changes.unchanged_layers == len(made.layers)
    assert changes.iteration_time.change == changes.gpu_seconds.change == changes.amplification.change == 0
    assert "the same plan" in str(changes)
    assert changes.explain() == str(changes)


SLOW = Link(1e9, 1e-3, "made by hand")


@pytest.mark.parametrize(
    ("replaced", "expected"),
    [
        ({"amplification_limit": 1.5}, [("amplification_limit", 2.0, 1.5)]),
        ({"limit_scope": "iteration"}, [("limit_scope", "layer", "iteration")]),
        ({"gpu_counts": (1, 2, 4)}, [("gpu_counts", (1, 2), (1, 2, 4))]),
        ({"global_batch": 32}, [("global_batch", 64, 32)]),
        ({"network_model": "paper"}, [("network_model", "ring", "paper")]),
        (
            {"overlap_sync": True, "buckets": ONE_BUCKET},
            [("overlap_sync", False, True), ("buckets", None, "one bucket for all gradients of the same GPUs")],
        ),
        ({"search": "published"}, [("search", "exact", "published")]),
        ({"optimizer": "adam"}, [("optimizer", "momentum", "adam")]),
        ({"cluster": Cluster(4, memory=16e9)}, [("memory", 40e9, 16e9)]),
        ({"profile_fingerprint": "q"}, [("profile", "p", "q")]),
        ({"provenance": "estimated"}, [("provenance", "measured", "estimated")]),
        ({"device_name": "Other CPU"}, [("device", "Test CPU", "Other CPU")]),
        ({"precision": "bf16"}, [("precision", "fp32", "bf16")]),
        ({"gpus": 8, "cluster": Cluster(8)}, [("gpus", 4, 8)]),
        ({"cluster": Cluster(4, "other")}, [("cluster", "dgx-a100", "other")]),
        ({"cluster": Cluster(4, gpus_per_node=2)}, [("gpus_per_node", 8, 2)]),
        (
            {"cluster": Cluster(4, inside=SLOW)},
            [("inside_bandwidth", 300e9, 1e9), ("inside_latency", 5e-6, 1e-3)],
        ),
        (
            {"cluster": Cluster(4, between=SLOW)},
            [("between_bandwidth", 25e9, 1e9), ("between_latency", 10e-6, 1e-3)],
        ),
    ],
)
def test_different_requests_are_named(replaced, expected):
    before = two_layer_plan()
    found = diff(before, dataclasses.replace(before, **replaced)).request
    assert [(item.name, item.before, item.after) for item in found] == expected


def test_every_option_of_a_plan_is_compared():
    before = two_layer_plan()
    after = dataclasses.replace(
        before,
        cluster=Cluster(8, "other", 4, SLOW, SLOW, None),
        gpus=8,
        profile_fingerprint="q",
        global_batch=32,
        amplification_limit=None,
        limit_scope="iteration",
        search="published",
        goal="cluster_throughput",
        background=GoalBackground("other", 1e-3),
        gpu_counts=(1, 2, 4),
        network_model="paper",
        overlap_sync=True,
        optimizer="adam",
    )
    assert set(inspect.signature(dp.plan).parameters) <= {item.name for item in diff(before, after).request}


def test_memory_of_the_fullest_gpu_is_compared():
    use = MemoryUse((0,), 4, 4, 4, 0, 0, 2**30, ())
    before = dataclasses.replace(two_layer_plan(), memory=(use, dataclasses.replace(use, gpus=(1,), total=5)))
    after = dataclasses.replace(before, memory=(dataclasses.replace(use, total=2**31),), optimizer="adam")
    changes = diff(before, after)
    assert changes.memory == TotalChange(2**30, 2**31, 2**30)
    assert "fullest GPU" in changes.explain()
    assert "+1.0 GiB (+100.0 %)" in changes.explain()
    assert diff(before, dataclasses.replace(after, memory=())).memory is None


def test_plans_of_different_graphs_are_refused_with_both_fingerprints():
    other = dataclasses.replace(two_layer_plan(), graph_fingerprint="h", model="other")
    with pytest.raises(PlanError, match=r"tiny \(fingerprint g, 2 layers\) and other \(fingerprint h, 2 layers\)"):
        diff(two_layer_plan(), other)


def test_a_plan_that_lost_a_layer_is_rejected():
    shorter = dataclasses.replace(two_layer_plan(), layers=two_layer_plan().layers[:1])
    with pytest.raises(PlanError, match=r"tiny \(fingerprint g, 2 layers\) and tiny \(fingerprint g, 1 layers\)"):
        diff(two_layer_plan(), shorter)


# -- as text and as a file --------------------------------------------------------------------------


def test_tables_show_every_change_within_a_hundred_columns():
    text = diff(two_layer_plan(), moved_plan()).explain()
    lines = text.splitlines()
    assert lines[0] == "tiny: 46 ms → 76.5 ms an iteration (+66.3 %), 0 of 2 layers unchanged"
    assert max(map(len, lines)) <= 100
    cells = {line.split()[0]: " ".join(line.split()) for line in lines if line}
    assert cells["amplification_limit"] == "amplification_limit 2 none"
    assert cells["iteration"] == "iteration time 46 ms 76.5 ms +30.5 ms (+66.3 %)"
    assert cells["GPU-seconds"] == "GPU-seconds 139 ms 137 ms -2 ms (-1.4 %)"
    assert cells["conv"] == "conv 4 → 2 31 ms → 60.5 ms +29.5 ms +30 ms – -500 us"
    assert cells["fc"] == "fc 1 → 1 (3) 15 ms → 16 ms +1 ms – +1 ms –"


@pytest.mark.parametrize(
    ("gpus", "text"), [((0, 1), "2"), ((2, 3), "2 (2-3)"), ((0, 2), "2 (0,2)"), ((3,), "1 (3)"), ((1, 2, 3), "3 (1-3)")]
)
def test_gpus_are_counted_and_named_unless_they_are_the_first_ones(gpus, text):
    moved = dataclasses.replace(two_layer_plan().layers[0], gpu_count=len(gpus), gpus=gpus)
    after = dataclasses.replace(two_layer_plan(), layers=(moved, two_layer_plan().layers[1]))
    assert f" 4 → {text} " in diff(two_layer_plan(), after).explain()


def test_a_long_name_is_folded_and_brackets_are_no_markup():
    name = "encoder.blocks[/b].mixed_5b.branch3x3dbl_1.convolution.attention.output.projection"
    renamed = [
        dataclasses.replace(made, layers=(dataclasses.replace(made.layers[0], name=name), made.layers[1]))
        for made in (two_layer_plan(), moved_plan())
    ]
    lines = diff(*renamed).explain().splitlines()
    assert max(map(len, lines)) <= 100
    # The name's column is the first one: what is left of a line without its numbers.
    folded = "".join(line.strip() if " → " not in line else line.split()[0] for line in lines if "conv" in line or line)
    assert "[/b]" in folded


def test_diff_read_back_is_the_diff_written(tmp_path):
    changes = diff(two_layer_plan(), moved_plan())
    path = files.save(changes, tmp_path / "diff.json")
    document = json.loads(path.read_text())
    assert document["format"] == "deeppool/diff"
    assert document["layers"][0].keys() >= {"name", "before", "after", "change", "compute", "reshard", "sync"}
    assert files.load(path) == changes


@pytest.mark.parametrize("counts", [(1, 2, 4), (1,)])
def test_request_values_keep_their_kind_in_a_file(tmp_path, counts):
    before = two_layer_plan()
    changes = diff(before, dataclasses.replace(before, gpu_counts=counts, global_batch=32, overlap_sync=True))
    path = serialization.write(changes, tmp_path / "diff.json")
    assert files.load(path).request == changes.request
    assert [type(item.after) for item in files.load(path).request] == [type(item.after) for item in changes.request]
