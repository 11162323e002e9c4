"""The panel that compares training modes, without a page: a comparison that goes step by step, and a real one."""

import inspect
import queue

import pytest

from deeppool.errors import RankFailedError, RunCancelledError
from deeppool.runs.mode_comparison.compare import compare_modes
from deeppool.runs.mode_comparison.record import ModeComparison, ModePoint, ModeTraining
from deeppool.widgets import ModeComparisonPanel, mode_comparison_panel
from tests.waiting import TIMEOUT, wait_until

DONE = ModeComparison(
    "digits", 2, 0.05, "a <processor>",
    tuple(ModeTraining(mode, 0, 8, (ModePoint(2.0, 4, 1.0, 0.9, 0.75),)) for mode in ("full", "solo")),
)  # fmt: skip


class Scripted:
    """A comparison that reports a point whenever it is told to, and ends with a record or an error."""

    __name__ = "compare_modes"

    def __init__(self) -> None:
        self.given: dict = {}
        self.go: queue.SimpleQueue = queue.SimpleQueue()
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(
        self, task, delays, *, modes=(), ranks=0, updates=0, on_point=None, on_progress=None, **sizes
    ) -> ModeComparison:
        self.given = {"task": task, "delays": delays, "modes": modes, "ranks": ranks, "updates": updates, **sizes}
        while not isinstance(step := self.go.get(timeout=TIMEOUT), ModeComparison):
            if isinstance(step, Exception):
                raise step
            mode, point = step
            on_point(mode, 0, point)
            on_progress(f"training by {mode}", 0.5)
            self.done.put(None)
        return step

    def step(self, mode: str, point: ModePoint) -> None:
        self.go.put((mode, point))
        self.done.get(timeout=TIMEOUT)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    found = Scripted()
    monkeypatch.setattr(mode_comparison_panel, "compare_modes", found)
    monkeypatch.setattr(mode_comparison_panel, "INTERVAL", 0.0)
    return found


def test_the_scripted_comparison_takes_what_the_real_one_does() -> None:
    taken = set(inspect.signature(Scripted().__call__).parameters)
    assert taken <= set(inspect.signature(compare_modes).parameters)


def test_nothing_is_trained_before_the_button_is_pressed() -> None:
    panel = ModeComparisonPanel()
    assert (panel.row.run, panel.record, panel.row.cancel.disabled) == (None, None, True)
    assert "Nothing has run yet" in panel.status.value
    assert not panel.static().data


def test_points_are_drawn_as_they_come_and_the_record_at_the_end(scripted: Scripted) -> None:
    panel = ModeComparisonPanel(ranks=2, updates=20, longest_delay=0.05)
    panel.imbalance.value = "one random rank"
    run = panel.begin()
    scripted.step("full", ModePoint(0.5, 1, 2.0))
    scripted.step("full", ModePoint(1.0, 2, 1.5))
    scripted.step("solo", ModePoint(0.25, 1, 2.1))
    lines = {trace.name: (trace.x, trace.y) for trace in panel.figure.data}
    assert lines == {"full": ((0.5, 1.0), (2.0, 1.5)), "solo": ((0.25,), (2.1,))}
    assert {key: scripted.given[key] for key in ("task", "ranks", "updates", "batch")} == {
        "task": "digits", "ranks": 2, "updates": 20, "batch": 64,
    }  # fmt: skip
    assert sorted(scripted.given["delays"](rank, 3) for rank in range(2)) == [0.0, 0.05]
    assert panel.begin() is run
    scripted.go.put(DONE)
    wait_until(lambda: not panel.row.start.disabled)
    assert panel.record is DONE
    assert [trace.y for trace in panel.figure.data] == [(0.9,), (75.0,)] * 2
    assert "a &lt;processor&gt;" in panel.status.value


def test_an_error_is_shown_and_what_was_drawn_stays(scripted: Scripted) -> None:
    panel = ModeComparisonPanel()
    panel.begin()
    scripted.step("majority", ModePoint(0.5, 1, 2.0))
    scripted.go.put(RankFailedError("rank 1 ended <early>"))
    wait_until(lambda: not panel.row.start.disabled)
    assert "rank 1 ended &lt;early&gt;" in panel.problem
    assert [trace.name for trace in panel.figure.data] == ["majority"]


def test_a_new_comparison_removes_the_lines_of_the_last_one(scripted: Scripted) -> None:
    panel = ModeComparisonPanel()
    panel.begin()
    scripted.go.put(DONE)
    wait_until(lambda: not panel.row.start.disabled)
    assert panel.figure.data
    panel.begin()
    assert panel.figure.data == ()
    scripted.go.put(RunCancelledError("cancelled"))
    wait_until(lambda: not panel.row.start.disabled)
    assert panel.figure.data == ()


def test_a_cancelled_comparison_is_no_error(scripted: Scripted) -> None:
    panel = ModeComparisonPanel()
    panel.begin()
    panel.row.request_cancel()
    scripted.go.put(RunCancelledError("cancelled"))
    wait_until(lambda: not panel.row.start.disabled)
    assert (panel.problem, panel.record) == ("", None)


@pytest.mark.parametrize("imbalance", mode_comparison_panel.IMBALANCES)
def test_no_rank_is_late_by_more_than_the_longest_delay(imbalance: str) -> None:
    delays = mode_comparison_panel.IMBALANCES[imbalance](4, 0.2)
    found = [delays(rank, step) for rank in range(4) for step in range(50)]
    assert 0.1 < max(found) <= 0.2 * 3.21 / 3.2
    assert min(found) >= 0


@pytest.mark.processes
def test_a_real_comparison_is_drawn() -> None:
    panel = ModeComparisonPanel(ranks=2, updates=4, longest_delay=0.02)
    panel.task.value = "hyperplane"
    found = panel.begin().result(120)
    wait_until(lambda: panel.record is found)
    assert {trace.name for trace in panel.figure.data} == {"full", "straggler-aware", "majority", "solo"}
    assert all(trace.y[-1] > 0 for trace in panel.figure.data)
