"""The explorer's controls and what it shows, without a browser: the plan of the sliders, in every figure."""

import math
import threading
from dataclasses import replace

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.cluster.cluster import PRESETS, Cluster, Link
from deeppool.errors import InvalidValueError, PlanError
from deeppool.figures.frontier import THIS_PLAN
from deeppool.planning.report.summary import summarise
from deeppool.planning.studies.collocation_tradeoff import operating_point, share
from deeppool.widgets import AmplificationExplorer
from deeppool.widgets.amplification_explorer import FADED
from deeppool.widgets.exploration import PlanQuery
from tests.strategies import make_graph, profile_from_times
from tests.widgets.interleaved_threads import TIMEOUT, InterleavedCall, WatchedLock

CLUSTER = Cluster(8, "by hand", 8, Link(1e12, 0.0, "made by hand"))
# Layers that scale, hardly scale and do not scale.
TIMES = [lambda b: 0.5e-3 * b, lambda b: 4e-3 + 0.2e-3 * b, lambda b: 8e-3]
PROFILE = profile_from_times(make_graph([(), (0,), (1,)]), TIMES)


def explorer(**options):
    return AmplificationExplorer(PROFILE, **{"cluster": CLUSTER, "gpus": 4, "global_batch": 16, **options})


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def without_reasons(plan):
    """Two searches take different times."""
    return replace(plan, search_time=0.0, layers=tuple(replace(layer, alternatives=()) for layer in plan.layers))


def assert_shows(panel, plan):
    """The sentence, the layers and the mark are of this plan, and so is what the panel hands out."""
    assert panel.wait(60)
    assert panel.problem == ""
    assert without_reasons(panel.plan) == without_reasons(plan)
    assert summarise(plan).split("(")[0] in panel.summary.value
    assert list(traces(panel.layers)["GPUs"].y) == [layer.gpu_count for layer in plan.layers]
    found = dp.frontier(PROFILE, plan.cluster, plan.global_batch)
    mark = traces(figures.frontier(found, plan))[THIS_PLAN]
    assert (list(traces(panel.comparison)[THIS_PLAN].x), list(traces(panel.comparison)[THIS_PLAN].y)) == (
        list(mark.x),
        list(mark.y),
    )
    curve = traces(panel.comparison)["efficient plans"]
    assert list(curve.y) == pytest.approx([1e3 * point.iteration_time for point in found.points[::-1]])
    assert curve.opacity is None


def test_of_two_controls_that_turn_in_two_threads_both_count(monkeypatch: pytest.MonkeyPatch) -> None:
    panel, turn = explorer(), WatchedLock()
    monkeypatch.setattr(panel, "_drawing", turn)

    def turn_gpus() -> None:
        panel.gpus.value = 8

    monkeypatch.setattr(panel, "_search", interrupted := InterleavedCall(panel._search, turn_gpus, turn))
    panel.limit.value = math.inf
    interrupted.thread.join(TIMEOUT)
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=8), 16))


def test_it_opens_with_the_plan_that_was_asked_for() -> None:
    assert_shows(explorer(), dp.plan(PROFILE, replace(CLUSTER, gpus=4), 16, 2.0))


def test_every_slider_changes_the_plan_and_everything_that_is_shown() -> None:
    panel = explorer()
    for control, value, asked in (
        (panel.limit, 1.0, (4, 16, 1.0)),
        (panel.limit, math.inf, (4, 16, None)),
        (panel.gpus, 8, (8, 16, None)),
        (panel.global_batch, 32, (8, 32, None)),
        (panel.limit, 1.5, (8, 32, 1.5)),
    ):
        control.value = value
        gpus, batch, limit = asked
        assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=gpus), batch, limit))


def test_another_cluster_and_other_links_are_planned_for() -> None:
    panel = explorer()
    assert panel.cluster.value == "by hand"
    panel.cluster.value = "ethernet-25g"
    assert panel.plan.cluster == replace(PRESETS["ethernet-25g"], gpus=4)
    panel.speed.value = 1.25e9
    cluster = panel.plan.cluster
    assert cluster.name == "ethernet-25g at 10 Gbit/s"
    assert {cluster.inside.bandwidth, cluster.between.bandwidth} == {1.25e9}
    assert cluster.between.latency == PRESETS["ethernet-25g"].between.latency
    assert "chosen" in cluster.inside.source
    assert_shows(panel, dp.plan(PROFILE, cluster, 16, 2.0))


def test_a_preset_by_name_and_a_value_between_the_steps_are_taken() -> None:
    panel = AmplificationExplorer(PROFILE, gpus=6, global_batch=24, amplification_limit=1.37, cluster="dgx-h100")
    assert (panel.gpus.value, panel.global_batch.value, panel.limit.value) == (6, 24, 1.37)
    assert panel.plan.amplification_limit == 1.37
    assert panel.plan.cluster == replace(PRESETS["dgx-h100"], gpus=6)


def test_steps_of_the_limit_end_with_no_limit_and_gpus_with_1024() -> None:
    panel = explorer(amplification_limit=None)
    assert panel.limit.options[-1] == ("no limit", math.inf)
    assert panel.limit.value == math.inf
    assert panel.plan.amplification_limit is None
    assert [count for _, count in panel.gpus.options] == [2**power for power in range(11)]
    assert panel.limit.continuous_update


def test_every_control_has_a_visible_label() -> None:
    panel = explorer()
    for control in (panel.limit, panel.gpus, panel.global_batch, panel.cluster, panel.speed, panel.view, panel.file):
        assert control.description
    assert panel.button.description == "Save plan"


def test_what_cannot_be_planned_is_reported_and_the_plan_before_stays() -> None:
    panel = explorer()
    before = panel.plan
    panel.gpus.value = 32
    assert "32 GPUs cannot share a global batch of 16" in panel.problem
    assert without_reasons(panel.plan) == without_reasons(before)
    assert list(traces(panel.layers)["GPUs"].y) == [layer.gpu_count for layer in before.layers]
    panel.global_batch.value = 64
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=32), 64, 2.0))


def test_while_there_is_no_plan_the_old_one_is_faded_and_buttons_lead_to_the_next() -> None:
    panel = explorer()
    panel.wait(60)
    panel.gpus.value = 32
    assert {trace.opacity for figure in (panel.layers, panel.comparison) for trace in figure.data} == {FADED}
    assert panel.summary.layout.visibility == "hidden"
    # Right below the controls that caused it.
    error = next(index for index, child in enumerate(panel.children) if "dp-problem" in child._dom_classes)
    assert panel.children[error + 1] is panel.corrections
    assert error == 1
    assert [button.description for button in panel.corrections.children] == ["use batch 32", "use 16 GPUs"]
    panel.corrections.children[1].click()
    assert (panel.gpus.value, panel.plan.gpus, panel.problem) == (16, 16, "")
    panel.wait(60)
    assert {trace.opacity for trace in panel.layers.data} == {None}
    assert (panel.summary.layout.visibility, panel.corrections.children) == ("visible", ())
    panel.gpus.value = 1024
    panel.corrections.children[0].click()
    assert (panel.global_batch.value, panel.plan.gpus) == (1024, 1024)


def test_what_cannot_be_planned_to_begin_with_is_an_error() -> None:
    with pytest.raises(InvalidValueError, match="amplification_limit must be at least 1"):
        explorer(amplification_limit=0.5)
    with pytest.raises(PlanError, match="cannot share a global batch"):
        explorer(gpus=64)
    with pytest.raises(InvalidValueError, match="no cluster 'nowhere'"):
        explorer(cluster="nowhere")


def test_static_partitions_and_a_background_job_are_the_other_comparison() -> None:
    background = profile_from_times(make_graph([()]), [lambda b: 1e-3 * b])
    panel = explorer(background=background)
    panel.view.value = "shared"
    assert panel.wait(60)
    shared = share(PROFILE, replace(CLUSTER, gpus=4), 16, background)
    shown = traces(panel.comparison)
    assert list(shown["static partition, data parallel"].y) == [x.throughput for x in shared.data_parallel_partitions]
    assert list(shown[THIS_PLAN].y) == [operating_point(shared, panel.plan).throughput]
    panel.limit.value = 1.0
    assert list(traces(panel.comparison)[THIS_PLAN].x) == [operating_point(shared, panel.plan).speedup]
    panel.view.value = "frontier"
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=4), 16, 1.0))


def test_a_frontier_that_takes_long_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(60)
    may_go_on = threading.Event()
    asked = []
    quick = panel._plans.frontier

    def slow(query: PlanQuery) -> object:
        asked.append(query.cluster.gpus)
        assert may_go_on.wait(60)
        return quick(query)

    monkeypatch.setattr(panel._plans, "frontier", slow)
    drawn = list(traces(panel.comparison)["efficient plans"].y)
    for gpus in (8, 2, 1):
        panel.gpus.value = gpus
        plan = dp.plan(PROFILE, replace(CLUSTER, gpus=gpus), 16, 2.0)
        assert list(traces(panel.layers)["GPUs"].y) == [layer.gpu_count for layer in plan.layers]
        assert f"The frontier of batch 16 on {gpus} GPU" in panel.comparison_status.value
        assert list(traces(panel.comparison)["efficient plans"].y) == drawn
        assert {trace.opacity for trace in panel.comparison.data} == {0.25}
    may_go_on.set()
    # The one under way when the slider moved on, and the newest; none of those between.
    assert_shows(panel, plan)
    assert asked[-1] == 1
    assert 2 not in asked or asked.index(2) == 0
    assert panel.comparison_status.value == ""


def test_a_frontier_is_computed_once_for_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(60)
    monkeypatch.setattr(panel._plans, "frontier", lambda query: pytest.fail("computed again"))
    for limit in (1.0, 1.5, 4.0):
        panel.limit.value = limit
        assert panel.comparison_status.value == ""
        assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=4), 16, limit))


def test_a_moved_limit_moves_the_mark_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(60)
    sent = []
    monkeypatch.setattr(panel.comparison, "_send_update_msg", lambda **message: sent.append(message))
    panel.limit.value = 1.0
    (message,) = sent
    assert set(message["restyle_data"]) == {"x", "y", "customdata"}
    assert message["trace_indexes"] == [2]
    assert message["relayout_data"] == {}


def test_an_error_in_the_background_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(60)

    def fail(query: PlanQuery) -> None:
        raise PlanError("no such frontier")

    monkeypatch.setattr(panel._plans, "frontier", fail)
    panel.gpus.value = 8
    assert panel.wait(60)
    assert (
        "The frontier of batch 16 on 8 GPUs of by hand cannot be computed: no such frontier"
        in panel.comparison_status.value
    )
    monkeypatch.undo()
    panel.limit.value = 1.0
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=8), 16, 1.0))
    assert panel.comparison_status.value == ""


def test_the_shown_plan_is_saved_under_a_name_that_says_what_it_is(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    panel = explorer()
    panel.limit.value = 1.5
    assert panel.file.value == "drawn-4gpus-batch16-limit1.5.json"
    panel.button.click()
    assert str(tmp_path / panel.file.value) in panel.save_status.value
    assert dp.load(panel.file.value) == panel.plan
    panel.file.value = "mine.json"
    panel.limit.value = 1.0
    assert panel.file.value == "mine.json"
    assert panel.save() == tmp_path / "mine.json"
    assert dp.load("mine.json").amplification_limit == 1.0
    panel.file.value = "no/such/folder/mine.json"
    panel.button.click()
    assert "no/such/folder" in panel.save_status.value
    assert 'role="alert"' in panel.save_status.value
    assert panel.problem == ""


def test_the_plan_it_hands_out_has_its_reasons() -> None:
    assert "why not fewer, why not more" in explorer().plan.explain()
    assert all(layer.alternatives for layer in explorer().plan.layers)


def test_others_are_reported_of_every_plan_that_is_shown() -> None:
    panel, seen = explorer(), []
    panel.observe(lambda change: seen.append(change.new), "plan")
    panel.limit.value = 1.0
    panel.gpus.value = 64
    panel.gpus.value = 8
    assert [(plan.gpus, plan.amplification_limit) for plan in seen] == [(4, 1.0), (8, 1.0)]


def test_it_follows_the_pages_theme() -> None:
    panel = explorer()
    assert panel.wait(60)
    panel.dark = True
    assert panel.wait(60)
    for shown in (panel.comparison, panel.layers):
        assert (
            shown.layout.template.layout.paper_bgcolor
            == figures.layers(panel.plan, dark=True).layout.template.layout.paper_bgcolor
        )


def test_where_nobody_can_move_it_it_is_the_frontier_with_the_plan() -> None:
    panel = explorer()
    shown = traces(panel.static())
    assert list(shown[THIS_PLAN].y) == [1e3 * panel.plan.iteration_time]
    assert "efficient plans" in shown
