"""The panels of techniques and of orders, without ranks."""

import html

import pytest

import deeppool as dp
from deeppool.collectives.transfer_methods import TUNED_DDP
from deeppool.errors import RankFailedError
from deeppool.interleaving.crossover.comparison import compare_orders
from deeppool.runs.technique_comparison.names import BURST, FIVE_TECHNIQUES
from deeppool.widgets import OrderPanel, TechniquePanel, order_panel, technique_panel
from deeppool.widgets.live_figure import LiveFigure
from tests.interleaving.crossover.test_scheduler import make_job
from tests.records.test_recorded_files import RECORDED
from tests.runs.test_technique_comparison import measured, predicted
from tests.waiting import TIMEOUT, wait_until


def test_a_technique_panel_shows_gains_and_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {}

    def compare(job, *, on_record, on_progress=None, **settings):
        given.update(settings)
        on_record(measured())
        return measured()

    monkeypatch.setattr(technique_panel, "compare_techniques", compare)
    panel = TechniquePanel(make_job(), global_batch=8, predicted=predicted())
    assert panel.static() is None
    panel.late.value = 0.1
    panel.begin()
    wait_until(lambda: not panel.row.start.disabled)
    # Burst parallelism needs a plan.
    assert given["ways"] == [name for name in FIVE_TECHNIQUES if name != BURST]
    assert given["ways"][0] == TUNED_DDP
    assert (given["late"], given["repetitions"]) == (0.1, 5)
    assert panel.static() is not None
    assert "ordered transfers    yes" in panel.status.value


def test_figures_that_are_replaced_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(technique_panel, "compare_techniques", report)
    panel = TechniquePanel(make_job(), global_batch=8)
    panel.begin().result(TIMEOUT)
    wait_until(lambda: not panel.row.start.disabled)
    before = [child for child in panel.children if isinstance(child, LiveFigure)]
    panel.dark = True
    now = [child for child in panel.children if isinstance(child, LiveFigure)]
    assert [figure.comm for figure in before] == [None] * len(now)
    assert None not in [figure.comm for figure in now]


def report(job, *, on_record, on_progress=None, **settings):
    on_record(measured())


def test_a_new_run_removes_the_figures_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(technique_panel, "compare_techniques", report)
    panel = TechniquePanel(make_job(), global_batch=8)
    panel.begin().result(TIMEOUT)
    wait_until(lambda: not panel.row.start.disabled)
    monkeypatch.setattr(technique_panel, "compare_techniques", fail)
    panel.begin()
    wait_until(lambda: not panel.row.start.disabled)
    assert "out of <memory>" in html.unescape(panel.problem)
    assert panel.static() is None
    assert [child for child in panel.children if isinstance(child, LiveFigure)] == []


def fail(job, *, on_record, on_progress=None, **settings):
    raise RankFailedError("out of <memory>")


def test_a_bad_setting_is_shown_below_the_controls() -> None:
    panel = TechniquePanel(make_job(), global_batch=7)
    panel.begin()
    wait_until(lambda: not panel.row.start.disabled)
    assert "give a multiple of 2, got 7" in panel.problem


def test_an_order_panel_draws_rounds_and_needs_both_orders_of_its_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    record = dp.load(RECORDED / "crossover-comparison.json")

    def compare(jobs, *, orders, on_record, on_progress=None, **settings):
        on_record(record)
        return record

    monkeypatch.setattr(order_panel, "compare_orders", compare)
    panel = OrderPanel([make_job()], global_batch=8)
    panel.begin()
    wait_until(lambda: not panel.row.start.disabled)
    assert len([child for child in panel.children if hasattr(child, "data")]) == 2
    monkeypatch.setattr(order_panel, "compare_orders", compare_orders)
    panel.ways.value = ("crossover",)
    panel.begin()
    wait_until(lambda: not panel.row.start.disabled)
    assert "name both" in panel.problem
