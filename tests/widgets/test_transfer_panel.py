"""The panel of a live comparison without a page: one that goes step by step."""

import inspect
import queue

import pytest

from deeppool import figures
from deeppool.collectives.transfer_methods import CARAMEL, DDP
from deeppool.errors import RunCancelledError, RunError
from deeppool.execution.data_parallel.measure import METHODS, measure_transfers
from deeppool.records.measured_transfers import MeasuredTransfers
from deeppool.widgets import TransferPanel, transfer_panel
from tests.execution.data_parallel.test_measure import measured
from tests.interleaving.crossover.test_scheduler import make_job
from tests.waiting import TIMEOUT, wait_until


class Scripted:
    """A comparison that reports records when it is told to, and ends with the last one."""

    __name__ = "measure_transfers"

    def __init__(self) -> None:
        self.given: dict = {}
        self.go: queue.SimpleQueue[tuple[MeasuredTransfers, bool] | Exception] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(
        self, job, *, global_batch=None, ranks=None, methods=None, repetitions=None, on_progress=None, on_record=None
    ) -> MeasuredTransfers:
        self.given = {"global_batch": global_batch, "ranks": ranks, "methods": methods, "repetitions": repetitions}
        while True:
            step = self.go.get(timeout=TIMEOUT)
            if isinstance(step, Exception):
                raise step
            record, last = step
            on_progress("comparing methods", 0.5)
            on_record(record)
            self.done.put(None)
            if last:
                return record

    def step(self, record: MeasuredTransfers, *, last: bool = False) -> None:
        self.go.put((record, last))
        self.done.get(timeout=TIMEOUT)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    found = Scripted()
    monkeypatch.setattr(transfer_panel, "measure_transfers", found)
    return found


def drawn(panel: TransferPanel):
    return [child for child in panel.children if hasattr(child, "data")]


def test_the_scripted_comparison_takes_what_the_real_one_does() -> None:
    assert set(inspect.signature(Scripted().__call__).parameters) <= set(
        inspect.signature(measure_transfers).parameters
    )


def test_each_repetition_is_drawn_and_the_record_is_shown_at_the_end(scripted: Scripted) -> None:
    panel = TransferPanel(make_job(), global_batch=8, ranks=3, repetitions=2)
    assert "Nothing has run yet" in panel.status.value
    assert panel.static() is None
    panel.ways.value = (CARAMEL, DDP)
    run = panel.begin()
    scripted.step(first := measured(repetitions=1))
    # The last method is the one with which the others are compared, in whatever order they were chosen.
    assert scripted.given == {"global_batch": 8, "ranks": 3, "methods": [DDP, CARAMEL], "repetitions": 2}
    assert panel.record == first
    (figure,) = drawn(panel)
    assert [trace.name for trace in figure.data] == [trace.name for trace in figures.transfers(first).data]
    assert panel.begin() is run
    assert (panel.row.start.disabled, panel.row.cancel.disabled) == (True, False)
    scripted.step(last := measured(), last=True)
    wait_until(lambda: not panel.row.start.disabled)
    assert run.result() == panel.record == last
    assert "4 s of transfers by Caramel" in panel.status.value
    assert panel.row.cancel.disabled
    assert panel.static() == figures.transfers(last)


def test_a_failure_is_shown_below_the_controls(scripted: Scripted) -> None:
    panel = TransferPanel(make_job(), global_batch=8)
    assert panel.ways.value == METHODS
    panel.begin()
    scripted.go.put(RunError("rank 1 <failed>"))
    wait_until(lambda: not panel.row.start.disabled)
    assert "rank 1 &lt;failed&gt;" in panel.problem


def test_a_result_that_cannot_be_drawn_is_an_error_and_the_row_can_start_again(scripted: Scripted) -> None:
    panel = TransferPanel(make_job(), global_batch=8)

    def fails(record: MeasuredTransfers) -> None:
        raise ValueError("no <figure>")

    panel.row._on_result = fails
    run = panel.begin()
    scripted.step(measured(), last=True)
    wait_until(lambda: not panel.row.start.disabled)
    assert run.state == "done"
    assert panel.row.cancel.disabled
    assert "no &lt;figure&gt;" in panel.problem


def test_stop_ends_the_comparison(scripted: Scripted) -> None:
    panel = TransferPanel(make_job(), global_batch=8)
    run = panel.begin()
    panel.row.request_cancel()
    scripted.go.put((measured(), False))
    wait_until(lambda: run.state == "cancelled")
    with pytest.raises(RunCancelledError):
        run.result()
    wait_until(lambda: not panel.row.start.disabled)
