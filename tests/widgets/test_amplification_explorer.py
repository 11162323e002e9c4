"""The explorer's controls and what it shows, without a browser: the plan of the sliders, in every figure."""

import html
import math
import queue
import threading
from dataclasses import dataclass, field, replace

import pytest
import traitlets

import deeppool as dp
from deeppool import figures
from deeppool.base import cancellation
from deeppool.cluster.cluster import PRESETS, Cluster, Link
from deeppool.errors import InvalidValueError, PlanError, RunCancelledError, RunError
from deeppool.figures import theme
from deeppool.figures.frontier import THIS_PLAN
from deeppool.figures.plan_graph import MOST_NODES
from deeppool.figures.timeline import MARK
from deeppool.planning.report.alternatives import alternatives_of
from deeppool.planning.report.as_code import plan_command, plan_python
from deeppool.planning.report.summary import summarise
from deeppool.planning.studies.collocation_tradeoff import operating_point, share
from deeppool.widgets import AmplificationExplorer, CollocationPanel, TimelineView, exploration, plan_comparison
from deeppool.widgets.amplification_explorer import FAILED, SEARCHING
from deeppool.widgets.exploration import PlanQuery
from deeppool.widgets.live_figure import FADED
from tests.planning.search.test_block_evaluation import CLUSTER as FOUR_GPUS
from tests.planning.search.test_block_evaluation import trading_profile
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
    assert panel.wait(300)
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
    for control in (*panel.controls.all, panel.compared.view, panel.file):
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
    panel.wait(300)
    panel.gpus.value = 32
    assert {trace.opacity for figure in (panel.layers, panel.comparison) for trace in figure.data} == {FADED}
    assert panel.summary.layout.visibility == "hidden"
    # Right below the controls that caused it.
    error = next(index for index, child in enumerate(panel.children) if "dp-problem" in child._dom_classes)
    assert panel.children[error + 1] is panel.controls.corrections
    assert error == 1
    assert [button.description for button in panel.controls.corrections.children] == ["use batch 32", "use 16 GPUs"]
    panel.controls.corrections.children[1].click()
    assert (panel.gpus.value, panel.plan.gpus, panel.problem) == (16, 16, "")
    panel.wait(300)
    assert {trace.opacity for trace in panel.layers.data} == {None}
    assert (panel.summary.layout.visibility, panel.controls.corrections.children) == ("visible", ())
    panel.gpus.value = 1024
    panel.controls.corrections.children[0].click()
    assert (panel.global_batch.value, panel.plan.gpus) == (1024, 1024)


def opacities(panel) -> set:
    return {trace.opacity for figure in (panel.layers, panel.comparison) for trace in figure.data}


def test_while_there_is_no_plan_nothing_else_that_is_touched_brings_the_old_one_back(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    panel, refusal = explorer(), "32 GPUs cannot share a global batch of 16"
    assert panel.wait(300)
    panel.gpus.value = 32
    for touch in (
        lambda: setattr(panel, "dark", True),
        lambda: click(panel, 0, 1),
        lambda: setattr(panel.layer_figure.view, "value", "gpus"),
        lambda: setattr(panel.compared.view, "value", "shared"),
        *(button.click for button in (*panel.code.buttons, panel.run_here, panel.button)),
    ):
        touch()
        assert panel.wait(300)
        assert refusal in panel.problem
        assert opacities(panel) == {FADED}
    assert panel.selected == panel.plan.layers[1].name
    assert {trace.opacity for trace in panel.alternatives.data} == {FADED}
    assert (panel.summary.layout.visibility, panel.code.text, panel.run.children) == ("hidden", "", ())
    assert refusal in panel.save_status.value
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PlanError, match=refusal):
        panel.save()
    panel.gpus.value = 4
    panel.compared.view.value = "frontier"
    panel.layer_figure.view.value = "bars"
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=4), 16, 2.0))
    assert opacities(panel) | {trace.opacity for trace in panel.alternatives.data} == {None}
    assert panel.save_status.value == ""


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
    panel.compared.view.value = "shared"
    assert panel.wait(300)
    shared = share(PROFILE, replace(CLUSTER, gpus=4), 16, background)
    shown = traces(panel.comparison)
    assert list(shown["static partition, data parallel"].y) == [x.throughput for x in shared.data_parallel_partitions]
    assert list(shown[THIS_PLAN].y) == [operating_point(shared, panel.plan).throughput]
    panel.limit.value = 1.0
    assert list(traces(panel.comparison)[THIS_PLAN].x) == [operating_point(shared, panel.plan).speedup]
    panel.compared.view.value = "frontier"
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=4), 16, 1.0))


def test_a_frontier_that_takes_long_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(300)
    may_go_on = threading.Event()
    asked = []
    quick = panel._plans.frontier

    def slow(query: PlanQuery) -> object:
        asked.append(query.cluster.gpus)
        assert may_go_on.wait(300)
        return quick(query)

    monkeypatch.setattr(panel._plans, "frontier", slow)
    drawn = list(traces(panel.comparison)["efficient plans"].y)
    for gpus in (8, 2, 1):
        panel.gpus.value = gpus
        plan = dp.plan(PROFILE, replace(CLUSTER, gpus=gpus), 16, 2.0)
        assert list(traces(panel.layers)["GPUs"].y) == [layer.gpu_count for layer in plan.layers]
        assert f"The frontier of batch 16 on {gpus} GPU" in panel.compared.status.value
        assert list(traces(panel.comparison)["efficient plans"].y) == drawn
        assert {trace.opacity for trace in panel.comparison.data} == {0.25}
    may_go_on.set()
    # The one under way when the slider moved on, and the newest; none of those between.
    assert_shows(panel, plan)
    assert asked[-1] == 1
    assert 2 not in asked or asked.index(2) == 0
    assert panel.compared.status.value == ""


def test_before_the_first_frontier_is_known_its_place_is_empty_and_fits_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_go_on = threading.Event()
    quick = exploration.PlanCache.frontier
    monkeypatch.setattr(plan_comparison, "INITIAL_WAIT", 0.0)
    monkeypatch.setattr(exploration.PlanCache, "frontier", lambda *asked: may_go_on.wait(300) and quick(*asked))
    panel = explorer()
    try:
        panel._page.width = 600
        panel.dark = True
        assert panel.problem == ""
        assert "is being computed." in panel.compared.status.value
        assert "previous" not in panel.compared.status.value
        assert panel.comparison.layout.xaxis.visible is panel.comparison.layout.yaxis.visible is False
    finally:
        may_go_on.set()
    assert_shows(panel, panel.plan)
    assert panel.comparison.layout.xaxis.visible is panel.comparison.layout.yaxis.visible is None


def test_a_faded_frontier_follows_the_pages_theme(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(300)
    may_go_on = threading.Event()
    quick = panel._plans.frontier
    monkeypatch.setattr(panel._plans, "frontier", lambda query: may_go_on.wait(300) and quick(query))
    panel.gpus.value = 8
    try:
        panel.dark = True
        assert {trace.opacity for trace in panel.comparison.data} == {FADED}
        assert panel.comparison.layout.template.layout.paper_bgcolor == theme.paper(dark=True)
    finally:
        may_go_on.set()
    assert panel.wait(300)


@dataclass
class HeldSearch:
    """What the searches wait for: the first good plan, and the proof."""

    first: threading.Event = field(default_factory=threading.Event)
    proof: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def held_search(monkeypatch: pytest.MonkeyPatch) -> HeldSearch:
    held, search = HeldSearch(), exploration.plan_from_costs

    def searching(*arguments, proving, **options):
        assert (held.proof if proving else held.first).wait(300)
        return search(*arguments, proving=proving, **options)

    monkeypatch.setattr(exploration, "plan_from_costs", searching)
    return held


def trading_explorer(limit):
    """By hand (see trading_profile): 8 + 4.5 ms in sequence on one GPU, max(4, 0) + max(4, 4.5) ms side by side."""
    return AmplificationExplorer(
        trading_profile(), cluster=FOUR_GPUS, gpus=4, global_batch=4, amplification_limit=limit
    )


def test_a_plan_is_shown_at_once_and_better_ones_follow(held_search: HeldSearch) -> None:
    panel = trading_explorer(1.5)
    seen: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
    panel.observe(lambda change: seen.put((change["new"].iteration_time, change["new"].optimality)), "plan")
    # In sequence. The longer branch by itself takes 8 ms, which no plan beats.
    assert panel.plan.iteration_time == pytest.approx(12.5e-3, rel=1e-4)
    assert panel.plan.optimality == "bound 1.563"
    assert "bound 1.563" in panel.summary.value
    assert SEARCHING in panel.summary.value
    assert "amplification" in panel.plan.explain()
    held_search.first.set()
    time, claim = seen.get(timeout=TIMEOUT)
    assert (time, claim) == (pytest.approx(8.5e-3, rel=1e-4), "bound 1.063")
    held_search.proof.set()
    assert panel.wait(300)
    time, claim = seen.get(timeout=TIMEOUT)
    assert (time, claim) == (pytest.approx(8.5e-3, rel=1e-4), "exact")
    assert seen.empty()
    proved = dp.plan(trading_profile(), FOUR_GPUS, 4, 1.5)
    assert without_reasons(panel.plan) == without_reasons(proved)
    assert "exact" in panel.summary.value
    assert SEARCHING not in panel.summary.value


def test_a_plan_that_is_known_is_shown_again_without_a_search(held_search: HeldSearch) -> None:
    held_search.first.set()
    held_search.proof.set()
    panel = trading_explorer(1.5)
    assert panel.wait(300)
    known = panel.plan
    panel.limit.value = 1.0
    assert panel.wait(300)
    held_search.first.clear()
    panel.limit.value = 1.5
    assert panel.plan is known
    assert SEARCHING not in panel.summary.value


def test_a_plan_within_a_lower_limit_is_shown_until_a_better_one_is_found(held_search: HeldSearch) -> None:
    held_search.first.set()
    held_search.proof.set()
    panel = trading_explorer(1.5)
    assert panel.wait(300)
    before = panel.plan
    held_search.first.clear()
    panel.limit.value = math.inf
    # In sequence the best one takes 11.5 ms: on two GPUs the longer branch takes 7 ms, which is the bound of 1.215.
    assert panel.plan.iteration_time == before.iteration_time
    assert (panel.plan.amplification_limit, panel.plan.optimality) == (None, "bound 1.215")
    assert "over the limit" not in panel.plan.explain()
    held_search.first.set()
    assert panel.wait(300)
    assert panel.plan.iteration_time == pytest.approx(7e-3, rel=1e-4)
    # A plan within a higher limit is of no use for a lower one.
    held_search.first.clear()
    panel.limit.value = 1.1
    assert panel.plan.iteration_time == pytest.approx(12.5e-3, rel=1e-4)
    assert all(layer.amplification <= 1.1 for layer in panel.plan.layers)
    held_search.first.set()
    assert panel.wait(300)


def test_where_the_proof_finds_a_slower_plan_the_first_one_stays_with_the_better_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = exploration.plan_from_costs

    def searching(*arguments, proving, **options):
        found = search(*arguments, proving=proving, **options)
        # A plan of 9.35 ms that is at most 1.2 times the optimum: the optimum takes at least 7.792.
        return replace(found, iteration_time=1.1 * found.iteration_time, optimality="bound 1.2") if proving else found

    monkeypatch.setattr(exploration, "plan_from_costs", searching)
    panel = trading_explorer(1.5)
    assert panel.wait(300)
    assert panel.plan.iteration_time == pytest.approx(8.5e-3, rel=1e-4)
    assert panel.plan.optimality == "bound 1.091"
    assert SEARCHING not in panel.summary.value


def test_a_plan_that_comes_after_the_slider_moved_on_changes_nothing(
    held_search: HeldSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_search.first.set()
    held_search.proof.set()
    panel = trading_explorer(None)
    assert panel.wait(300)
    shown = panel.plan
    held_search.first.clear()
    panel.limit.value = 1.5
    monkeypatch.setattr(panel, "_drawing", turn := WatchedLock())
    with turn:
        held_search.first.set()
        assert turn.wanted.wait(TIMEOUT)
        panel.limit.value = math.inf
    assert panel.wait(300)
    assert panel.plan is shown


def test_a_search_that_fails_behind_a_plan_ends_the_sentence_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = exploration.plan_from_costs

    def failing(*arguments, proving, **options):
        if proving:
            raise PlanError("no plan fits <16 GPUs>")
        return search(*arguments, proving=proving, **options)

    monkeypatch.setattr(exploration, "plan_from_costs", failing)
    panel = trading_explorer(1.5)
    assert panel.wait(300)
    failure = html.escape(FAILED + "no plan fits <16 GPUs>")
    for dark in (False, True):
        panel.dark = dark
        assert summarise(panel.plan).split("(")[0] in panel.summary.value
        assert failure in panel.summary.value
        assert SEARCHING not in panel.summary.value
    # Another plan has no failure, and the same one is searched for again.
    panel.limit.value = math.inf
    assert panel.wait(300)
    assert FAILED not in panel.summary.value
    monkeypatch.undo()
    panel.limit.value = 1.5
    assert panel.wait(300)
    assert panel.plan.optimality == "exact"
    assert FAILED not in panel.summary.value


@pytest.mark.parametrize("task", ["proof", "frontier"])
def test_what_is_searched_for_other_values_ends_before_the_next_search(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, frontier = exploration.plan_from_costs, exploration.frontier
    begun, ended = threading.Event(), threading.Event()

    def until_cancelled() -> None:
        begun.set()
        try:
            cancellation.wait(queue.SimpleQueue(), TIMEOUT)
        except RunCancelledError:
            ended.set()
            raise

    def searching(*arguments, proving, **options):
        if proving and task == "proof" and not begun.is_set():
            until_cancelled()
        # The next search begins while the panel's callback runs.
        if not proving and begun.is_set():
            assert ended.wait(TIMEOUT)
        return search(*arguments, proving=proving, **options)

    def comparing(*arguments):
        if task == "frontier" and not begun.is_set():
            until_cancelled()
        return frontier(*arguments)

    monkeypatch.setattr(exploration, "plan_from_costs", searching)
    monkeypatch.setattr(exploration, "frontier", comparing)
    panel = trading_explorer(1.5)
    assert begun.wait(TIMEOUT)
    panel.gpus.value = 2
    assert panel.problem == ""
    assert panel.wait(300)
    assert panel.plan.gpus == 2


def test_a_frontier_is_computed_once_for_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(300)
    monkeypatch.setattr(panel._plans, "frontier", lambda query: pytest.fail("computed again"))
    for limit in (1.0, 1.5, 4.0):
        panel.limit.value = limit
        assert panel.compared.status.value == ""
        assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=4), 16, limit))


def test_a_moved_limit_moves_the_mark_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(300)
    sent = []
    monkeypatch.setattr(panel.comparison, "_send_update_msg", lambda **message: sent.append(message))
    panel.limit.value = 1.0
    (message,) = sent
    assert set(message["restyle_data"]) == {"x", "y", "customdata"}
    assert message["trace_indexes"] == [2]
    assert message["relayout_data"] == {}


def test_an_error_in_the_background_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorer()
    assert panel.wait(300)

    def fail(query: PlanQuery) -> None:
        raise PlanError("no such frontier")

    monkeypatch.setattr(panel._plans, "frontier", fail)
    panel.gpus.value = 8
    assert panel.wait(300)
    assert (
        "The frontier of batch 16 on 8 GPUs of by hand cannot be computed: no such frontier"
        in panel.compared.status.value
    )
    monkeypatch.undo()
    panel.limit.value = 1.0
    assert_shows(panel, dp.plan(PROFILE, replace(CLUSTER, gpus=8), 16, 1.0))
    assert panel.compared.status.value == ""


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
    assert panel.wait(300)
    panel.dark = True
    assert panel.wait(300)
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


def click(panel, trace, point):
    """As plotly reports one on a point of a trace of the layers."""
    points = {"trace_indexes": [trace], "point_indexes": [point], "xs": [None], "ys": [None]}
    panel.layers.set_state({"_js2py_pointsCallback": {"event_type": "plotly_click", "points": points}})


def test_a_click_on_a_layer_shows_the_costs_of_its_other_counts() -> None:
    panel, seen = explorer(), []
    panel.observe(lambda change: seen.append(change["new"]), "selected")
    (bars,) = [index for index, trace in enumerate(panel.layers.data) if trace.name == "amplification"]
    click(panel, bars, 1)
    assert panel.wait(300)
    assert seen == [panel.reasons.layer.value] == ["layer1"]
    wanted = figures.alternatives(alternatives_of(panel.plan, "layer1"))
    assert panel.alternatives.layout.title == wanted.layout.title
    assert [list(trace.y) for trace in panel.alternatives.data] == [list(trace.y) for trace in wanted.data]
    assert [shape.x0 for shape in panel.layers.layout.shapes if shape.type == "rect"] == [0.5]

    panel.limit.value = 1.0
    assert panel.wait(300)
    assert panel.alternatives.layout.title.text == "layer1: why 1 of 4 GPUs"
    panel.selected = "layr1"
    assert panel.wait(300)
    assert "no layer &#x27;layr1&#x27;" in panel.problem and "layer1" in panel.problem
    assert panel.alternatives not in panel.reasons.shown.children
    panel.reasons.layer.value = "layer2"
    assert panel.wait(300)
    assert (panel.problem, panel.selected) == ("", "layer2")
    panel.selected = ""
    assert panel.reasons.shown.children == ()


def test_in_the_graph_of_a_deep_model_a_click_opens_a_module_and_then_selects_a_layer() -> None:
    count = 2 * MOST_NODES
    graph = make_graph([(index - 1,) if index else () for index in range(count)])
    renamed = tuple(replace(x, name=f"m{i // 20}.layer{i}") for i, x in enumerate(graph.layers))
    profile = profile_from_times(replace(graph, layers=renamed), [TIMES[i % 3] for i in range(count)])
    panel = AmplificationExplorer(profile, cluster=CLUSTER, gpus=4, global_batch=16)
    panel.layer_figure.view.value = "gpus"
    assert [data[2] for data in panel.layers.data[1].customdata] == [f"m{index}" for index in range(count // 20)]
    click(panel, 1, 2)
    assert [data[2] for data in panel.layers.data[1].customdata] == [f"m2.layer{index}" for index in range(40, 60)]
    assert panel.selected == ""
    click(panel, 1, 1)
    assert panel.selected == "m2.layer41"
    back, here = panel.layer_figure.path.children
    assert (back.description, here.value) == ("all layers", "m2")
    # A slider keeps the part that is open.
    panel.limit.value = 1.0
    assert len(panel.layers.data[1].customdata) == 20
    back.click()
    assert len(panel.layers.data[1].customdata) == count // 20
    assert panel.layer_figure.path.children == ()
    panel.layer_figure.view.value = "amplification"
    assert "amplification of" in panel.layers.layout.title.text
    assert_shows_after_bars(panel)


def assert_shows_after_bars(panel) -> None:
    panel.layer_figure.view.value = "bars"
    assert list(traces(panel.layers)["GPUs"].y) == [layer.gpu_count for layer in panel.plan.layers]
    click(panel, 0, 7)
    assert panel.selected == panel.plan.layers[7].name


def test_a_selected_layer_is_found_in_a_linked_timeline() -> None:
    panel = AmplificationExplorer(dp.find_profile("vgg16-cpu"))
    view = TimelineView(panel.plan)
    traitlets.dlink((panel, "selected"), (view, "selected"))
    panel.selected = "features.14"
    start, end = view.window.value
    found = [
        (bar.base[i], bar.x[i], bar.marker.line.width[i])
        for bar in view.figure.data
        for i, (name, *_) in enumerate(bar.customdata)
        if name == "features.14"
    ]
    forward, length, outline = min(found)
    assert start <= forward < forward + length <= end
    assert end - start < view.window.max / 2
    assert outline == MARK
    view.selected = "layer9"
    assert "no displayed timeline has a span of layer &#x27;layer9&#x27;" in view.problem


def test_the_code_that_it_copies_is_that_of_the_displayed_plan() -> None:
    panel = explorer()
    sent = []
    panel._page.send = sent.append
    panel.limit.value = 1.1
    as_python, as_command = panel.code.buttons
    as_python.click()
    assert panel.code.text == plan_python(panel.plan)
    assert "amplification_limit=1.1" in panel.code.text
    assert sent[-1] == {"copy": panel.code.text}
    as_command.click()
    assert panel.code.text == plan_command(panel.plan) == sent[-1]["copy"]
    assert html.escape(panel.code.text) in panel.code.code.value
    assert panel.problem == ""


def test_a_plan_that_fits_here_gets_a_panel_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppool.processes.launcher.usable_cores", lambda: (0, 1))
    panel = explorer()
    panel.run_here.click()
    assert "the plan needs 4 cores, this machine has 2" in panel.problem
    assert panel.run.children == ()
    (correction,) = panel.controls.corrections.children
    assert correction.description == "use 2 GPUs"
    correction.click()
    assert panel.gpus.value == 2
    panel.run_here.click()
    (run,) = panel.run.children
    assert isinstance(run, CollocationPanel)
    assert run.plan == panel.plan
    assert panel.problem == ""
    # The run keeps the plan that it was opened for.
    panel.limit.value = 1.0
    assert run.plan.amplification_limit == 2.0


def test_a_panel_whose_run_is_in_progress_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(plan, *, on_progress=None, run_control=None, **settings) -> None:
        cancellation.wait(queue.SimpleQueue(), TIMEOUT)

    monkeypatch.setattr("deeppool.widgets.collocation_panel.launch", wait)
    panel = explorer(gpus=1)
    panel.run_here.click()
    (first,) = panel.run.children
    run = first.begin()
    panel.run_here.click()
    assert "a run of this explorer is still running (stop it first)" in panel.problem
    with pytest.raises(RunError, match="still running"):
        panel.prepare_run()
    assert panel.run.children == (first,)
    run.cancel()
    panel.run_here.click()
    (second,) = panel.run.children
    assert second is not first
    assert (first.comm, panel.problem) == (None, "")


def test_a_plan_for_gpus_says_how_to_get_one_for_this_machine() -> None:
    panel = AmplificationExplorer(replace(PROFILE, device="cuda"), cluster=CLUSTER, gpus=4, global_batch=16)
    panel.run_here.click()
    assert "this machine has 0 (plan for its cores: profile with --device cpu)" in panel.problem
    assert panel.run.children == ()
