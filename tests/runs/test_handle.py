"""A handle on a run: what it shows during the run, how it cancels it, and that no process is left."""

import contextlib
import functools
import inspect
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import deeppool as dp
from deeppool.base import cancellation
from deeppool.errors import InvalidValueError, RunCancelledError, RunError
from deeppool.execution.checkpoint import latest
from deeppool.records.training_record import Metrics
from deeppool.runs import handle
from deeppool.widgets.run_panel import RunPanel
from tests.processes.children import children, gone, ranks
from tests.runs.test_train import losses, make_job, make_plan
from tests.waiting import TIMEOUT, wait_until

LONG = 100_000
"""More updates than any test waits for."""


# -- any call that reports progress -----------------------------------------------------------------


class Steps:
    """A call that makes one step at a time."""

    def __init__(self) -> None:
        self.go: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.stepped: queue.SimpleQueue[None] = queue.SimpleQueue()

    def climb(self, steps: int, *, on_metrics=None, on_progress=None) -> str:
        for step in range(1, steps + 1):
            failure = self.go.get(timeout=TIMEOUT)
            if failure is not None:
                raise failure
            on_metrics(Metrics(step, 1 / step, 0.1, 10.0, None))
            on_progress(f"update {step} of {steps}", step / steps)
            self.stepped.put(None)
        return "the top"

    def step(self) -> None:
        self.go.put(None)
        self.stepped.get(timeout=TIMEOUT)


def test_a_run_shows_what_it_does_and_gives_its_result() -> None:
    steps, heard = Steps(), []
    run = dp.start(steps.climb, 2, on_progress=lambda *stepped: heard.append(stepped))
    assert (run.state, run.metrics) == ("running", ())
    steps.step()
    assert (run.progress, run.doing, [m.loss for m in run.metrics]) == (0.5, "update 1 of 2", [1.0])
    assert repr(run).startswith("climb: update 1 of 2 (50 %, ")
    with pytest.raises(TimeoutError):
        run.result(timeout=0)
    steps.step()
    assert run.result(TIMEOUT) == "the top"
    assert (run.state, run.error, len(run.metrics)) == ("done", None, 2)
    assert repr(run).startswith("climb: done in ")
    assert heard == [("update 1 of 2", 0.5), ("update 2 of 2", 1.0)]
    run.cancel()
    assert run.state == "done"


def test_all_of_a_run_that_has_ended_is_done_whatever_it_reported_last() -> None:
    def half(on_progress: Callable[[str, float], None] = lambda what, share: None) -> None:
        on_progress("half", 0.5)

    run = dp.start(half)
    run.result(TIMEOUT)
    assert run.progress == 1
    assert RunPanel(run).bar.value == 1


def test_updates_repeated_after_a_fault_are_listed_once() -> None:
    def train(*, on_progress=None, on_metrics=None) -> None:
        for update in (1, 2, 3, 2, 3, 4):
            on_metrics(Metrics(update, 0.5, 0.1, 10.0, None))

    run = dp.start(train)
    run.result(TIMEOUT)
    assert [metrics.update for metrics in run.metrics] == [1, 2, 3, 4]


def test_a_failed_run_has_one_error() -> None:
    steps = Steps()
    run = dp.start(steps.climb, 2)
    steps.step()
    steps.go.put(RunError("the loss is nan (lower the learning rate)"))
    with pytest.raises(RunError, match="the loss is nan"):
        run.result(TIMEOUT)
    assert run.state == "failed"
    assert "\n" not in repr(run)
    assert repr(run).endswith("at 50 %: the loss is nan (lower the learning rate)")


def test_a_cancelled_run_ends_at_its_next_progress_report() -> None:
    steps = Steps()
    run = dp.start(steps.climb, 3)
    steps.step()
    run.request_cancel()
    steps.go.put(None)
    with pytest.raises(RunCancelledError):
        run.result(TIMEOUT)
    assert (run.state, run.progress, len(run.metrics)) == ("cancelled", 1 / 3, 1)


def wait_for_ever(*, on_progress=None) -> None:
    on_progress("waiting", 0.5)
    cancellation.wait(queue.SimpleQueue(), 1000)


def test_a_partial_has_the_name_of_its_function() -> None:
    run = dp.start(functools.partial(wait_for_ever))
    assert run.name == "wait_for_ever"
    run.cancel()


def test_a_cancelled_run_ends_while_it_waits_for_its_processes() -> None:
    run = dp.start(wait_for_ever)
    wait_until(lambda: run.doing == "waiting")
    run.cancel()
    assert run.state == "cancelled"
    # Cancelled before it waits, it does not begin to.
    requested = cancellation.Cancellation()
    requested.request()
    with requested.applied(), pytest.raises(RunCancelledError):
        cancellation.wait(queue.SimpleQueue(), 1000)


def test_a_wait_in_another_thread_is_not_cancelled() -> None:
    run = dp.start(wait_for_ever)
    run.cancel()
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    inbox.put("mine")
    assert cancellation.wait(inbox, TIMEOUT) == "mine"


def test_interrupting_the_wait_for_a_result_cancels_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = dp.start(wait_for_ever)

    def interrupted(timeout: float | None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match="wait_for_ever was interrupted"):
        patch.setattr(run._future, "result", interrupted)
        run.result()
    assert run.state == "cancelled"


def test_functions_without_progress_and_invalid_arguments_are_refused_at_once() -> None:
    with pytest.raises(InvalidValueError, match="simulate reports no progress"):
        dp.start(dp.simulate, None)
    with pytest.raises(InvalidValueError, match="simulate reports no progress"):
        dp.start(functools.partial(dp.simulate, None))
    with pytest.raises(TypeError, match="stepz"):
        dp.start(dp.train, None, None, steps=3, stepz=3)


def test_the_documentation_names_every_function_that_can_be_started() -> None:
    for name in dp.__all__:
        if callable(found := getattr(dp, name)) and "on_progress" in inspect.signature(found).parameters:
            assert f"``dp.{name}``" in dp.start.__doc__


# -- in a notebook ----------------------------------------------------------------------------------


def test_a_panel_follows_its_run_to_the_end() -> None:
    steps = Steps()
    run = dp.start(steps.climb, 2)
    bar, stop, _, said = RunPanel(run).children[0].children
    assert (bar.value, stop.disabled) == (0, False)
    steps.step()
    steps.step()
    run.result(TIMEOUT)
    wait_until(lambda: stop.disabled)
    assert (bar.value, bar.bar_style) == (1, "success")
    assert said.value.startswith("climb: done in ")
    late = RunPanel(run).children[0].children[0]
    assert (late.value, late.bar_style) == (1, "success")


def test_the_button_of_a_panel_cancels_and_the_error_is_shown() -> None:
    run = dp.start(wait_for_ever)
    bar, stop, _, said = RunPanel(run).children[0].children
    stop.click()
    with pytest.raises(RunCancelledError):
        run.result(TIMEOUT)
    wait_until(lambda: stop.disabled)
    assert bar.bar_style == "warning"
    assert "the run was cancelled" in said.value


def test_a_panel_shows_the_devices_when_asked_until_the_run_ends() -> None:
    steps = Steps()
    run = dp.start(steps.climb, 1)
    panel = RunPanel(run)
    panel.devices.click()
    assert panel.devices.disabled
    shown = panel.children[1]
    assert "dp-telemetry-panel" in shown._dom_classes
    steps.step()
    run.result(TIMEOUT)
    wait_until(lambda: not any(thread.name == "deeppool telemetry" for thread in threading.enumerate()))


def test_a_view_that_fails_does_not_end_a_run(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps()
    run = dp.start(steps.climb, 2)

    def fail() -> None:
        raise OSError("the browser is gone")

    run.watch(fail)
    steps.step()
    steps.step()
    assert run.result(TIMEOUT) == "the top"
    assert [record.getMessage() for record in caplog.records] == ["climb is no longer shown"]


def test_outside_a_notebook_a_run_prints_as_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    run = dp.start(wait_for_ever)
    assert set(run._repr_mimebundle_()) == {"text/plain"}
    run.cancel()


# -- real runs --------------------------------------------------------------------------------------


def with_processes(test: Callable[..., None]) -> Callable[..., None]:
    """Starts ranks anew, which takes long on a busy machine."""
    for mark in (pytest.mark.processes, pytest.mark.usefixtures("in_the_checkout")):
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """Losses of an uninterrupted training."""
    return losses(dp.train(make_plan(2), make_job(), steps=6))


@with_processes
@pytest.mark.stress
def test_two_concurrent_runs_and_a_cancelled_one_resumes_from_its_checkpoint(expected, tmp_path: Path) -> None:
    three = threading.Event()
    options = {"checkpoints": tmp_path, "checkpoint_every": 1}
    first = dp.start(
        dp.train,
        make_plan(2),
        make_job(),
        steps=LONG,
        on_metrics=lambda update: three.set() if update.update == 3 else None,
        **options,
    )
    assert three.wait(2 * TIMEOUT), repr(first)
    its = ranks()
    second = dp.start(dp.train, make_plan(2), make_job(), steps=6)
    wait_until(lambda: len(ranks()) == 4)
    first.cancel()
    assert len(its) == 2
    assert not set(its) & set(ranks())
    with pytest.raises(RunCancelledError, match=r"the last checkpoint is .*step-0000"):
        first.result()
    assert losses(second.result(2 * TIMEOUT)) == expected
    assert not ranks()
    assert [update.loss for update in first.metrics[:6]] == expected[: len(first.metrics)]
    reached = int(latest(tmp_path).name.removeprefix("step-"))
    record = dp.train(make_plan(2), make_job(), steps=reached + 1, **options)
    assert record.resumed_from.endswith(f"step-{reached:06}")


@with_processes
def test_a_launch_is_cancelled_while_it_starts() -> None:
    from tests.execution.test_faults import EXAMPLE
    from tests.execution.test_faults import make_plan as make_launch_plan

    run = dp.start(dp.launch, make_launch_plan(EXAMPLE), background=EXAMPLE, seconds=1000)
    wait_until(lambda: len(ranks()) == 2)
    started = children()
    run.cancel()
    assert all(map(gone, started))
    assert "the run was cancelled, every process of it was ended" in repr(run)


SCRIPT = """
import dataclasses, threading
import deeppool as dp
from tests.execution import soak_job
has_started = threading.Event()
job = dataclasses.replace(soak_job.job(), loader_workers=0)
run = dp.start(dp.train, soak_job.plan(2), job, steps=100_000, on_metrics=lambda update: has_started.set())
assert has_started.wait(300), run
"""


@with_processes
@pytest.mark.stress
def test_a_run_ends_with_the_script_that_does_not_wait_for_it(tmp_path: Path) -> None:
    script = SCRIPT + "import psutil; print(*[x.pid for x in psutil.Process().children(True)])"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 4, "two ranks, the process that they were forked from, and the keeper of the folder"
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert list(tmp_path.iterdir()) == []


# A launcher's death is that of a command in test_faults.py, and what a notebook shows is in the browser tests.
@pytest.mark.stress
@with_processes
def test_a_killed_kernel_leaves_no_process(tmp_path: Path) -> None:
    from jupyter_client.manager import KernelManager

    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path.cwd())}
    manager = KernelManager(kernel_name="python3", transport="ipc")
    manager.start_kernel(env=environment)
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=TIMEOUT)
        shown: list[dict] = []
        reply = client.execute_interactive(
            SCRIPT + "run", timeout=2 * TIMEOUT, output_hook=lambda message: shown.append(message["content"])
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        (bundle,) = [content["data"] for content in shown if "data" in content and "text/plain" in content["data"]]
        assert "application/vnd.jupyter.widget-view+json" in bundle
        assert bundle["text/plain"].startswith("train: update ")
        kernel = manager.provisioner.process.pid
        left = psutil.Process(kernel).children(recursive=True)
        assert len(left) == 4, "two ranks, the process that they were forked from, and the keeper of the folder"
        manager.restart_kernel(now=True)
        wait_until(lambda: all(map(gone, left)))
    finally:
        client.stop_channels()
        with contextlib.suppress(Exception):
            manager.shutdown_kernel(now=True)


def test_the_time_to_the_end_is_estimated_from_what_is_done_since_the_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # Shares of a run that has resumed at a quarter: start-up, first report, and a quarter more 100 s later.
    reports, clock = queue.SimpleQueue[tuple[float, float] | None](), SimpleNamespace(monotonic=lambda: now)
    reported = queue.SimpleQueue[None]()
    now = 1000.0

    def climb(on_progress: Callable[[str, float], None] = lambda what, share: None) -> None:
        while (share := reports.get(timeout=TIMEOUT)) is not None:
            on_progress("climbing", share)
            reported.put(None)

    def report(share: float) -> None:
        reports.put(share)
        reported.get(timeout=TIMEOUT)

    monkeypatch.setattr(handle, "time", clock)
    run = dp.start(climb)
    report(0.0)
    # A start-up of any length says nothing of the rest.
    now += 10_000
    assert run.remaining is None
    report(0.25)
    now += 100
    assert run.remaining is None
    report(0.5)
    # The other half takes as long for each share as the quarter did.
    assert run.remaining == pytest.approx(200)
    assert repr(run).endswith("about 200 s to go)")
    reports.put(None)
    run.result(TIMEOUT)
    assert run.remaining is None


def test_the_time_to_the_end_is_not_estimated_from_a_moment_or_from_little() -> None:
    steps = Steps()
    run = dp.start(steps.climb, 1)
    run._work_began, run.progress = (time.monotonic() - 10_000, 0.25), 0.26
    assert run.remaining is None
    run._work_began, run.progress = (time.monotonic() + 1, 0.25), 0.75
    assert run.remaining is None
    steps.step()
    run.result(TIMEOUT)
