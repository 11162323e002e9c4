"""The supervisor's reactions to its background processes; the processes are fakes."""

import errno
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import psutil
import pytest

from deeppool.base.sharing import Sharing
from deeppool.collocation import containment, supervisor
from deeppool.collocation.containment import ResourceWatch, Usage
from deeppool.collocation.job_process import JobHistory, JobProcess
from deeppool.collocation.job_queue import BackgroundJob, JobLists, JobQueue
from deeppool.collocation.supervisor import Supervisor
from deeppool.errors import RunError
from deeppool.job import Job
from deeppool.processes.managed_process import Inbox
from deeppool.processes.shared_page import SharedPage
from tests.waiting import wait_until

GIB = 2**30
PIDS = itertools.count(2**22 + 1)
"""IDs that no process has."""


class FakeProcess:
    """A process that does what the test sets."""

    def __init__(self, rank: int, inbox: Inbox) -> None:
        self.rank, self.inbox = rank, inbox
        self.process = SimpleNamespace(pid=next(PIDS))
        self.sent: list[str] = []
        self.killed = False
        self.usage = Usage(cpu=1.0, memory=0.5 * GIB, runnable=True)

    def send(self, command: str, **arguments: object) -> None:
        self.sent.append(command)

    def cpu_seconds(self) -> float:
        return self.usage.cpu

    def exit_reason(self) -> str:
        return "was killed by signal 11"

    def kill(self) -> None:
        self.killed = True

    def answer(self, event: str, **content: object) -> None:
        self.inbox.put((self, {"event": event, **content}))

    def report(self, updates: int, *, event: str = "progress", **content: object) -> None:
        fields = {"updates": updates, "samples": 2 * updates, "first_loss": 2.0, "last_loss": 1.0, "final_loss": 1.5}
        self.answer(event, **fields, cpu=self.usage.cpu, slowest=0.1, **content)

    def exit(self) -> None:
        self.inbox.put((self, None))


class FakeLauncher:
    """Starts fake processes."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []

    def worker_spec(self, rank: int) -> SimpleNamespace:
        return SimpleNamespace(core=rank, index=rank, folder="")

    def start(self, rank: int, module: str, name: str, inbox: Inbox) -> FakeProcess:
        self.started.append(FakeProcess(rank, inbox))
        return self.started[-1]


@pytest.fixture
def launcher() -> FakeLauncher:
    return FakeLauncher()


@pytest.fixture
def machine(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    memory = SimpleNamespace(total=100 * GIB, available=50 * GIB)

    def usages(groups: Iterator[int]) -> dict[int, Usage]:
        wanted = set(groups)
        return {process.process.pid: process.usage for process in launcher.started if process.process.pid in wanted}

    monkeypatch.setattr(containment, "group_usages", usages)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(supervisor, "TICK", 0.01)
    monkeypatch.setattr(supervisor, "SHORT_STOP_SECONDS", 0.5)
    return memory


@pytest.fixture
def make_supervisor(launcher: FakeLauncher, machine: SimpleNamespace, tmp_path: Path) -> Callable[..., Supervisor]:
    def make(jobs: JobLists, ranks: int = 1, device: str = "cpu") -> Supervisor:
        return Supervisor(
            JobQueue(jobs, ranks), launcher, ranks=ranks, device=device, sharing=Sharing(), folder=tmp_path
        )

    return make


def job(**choices: object) -> BackgroundJob:
    return BackgroundJob(Job("resnet18", (3, 32, 32), batch=2), **choices)


soon = partial(wait_until, pause=0.005)


def test_after_a_finished_job_the_next_one_starts(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor([job(steps=9), job()]) as running:
        soon(lambda: len(launcher.started) == 1)
        first = launcher.started[0]
        assert first.sent == ["setup", "serve"]
        first.answer("ready", priority="SCHED_IDLE")
        first.report(9, event="left", why="finished")
        soon(lambda: len(launcher.started) == 2)
        assert first.killed
        launcher.started[1].report(3)
        soon(lambda: running.outcomes()[1].steps == 3)
        events = running.events()
        assert events == ["background job resnet18 of rank 0: finished"]
    done, stopped = running.outcomes()
    assert (done.ended, done.steps, done.samples, done.priority) == ("finished", 9, 18, "SCHED_IDLE")
    assert stopped.ended.startswith("stopped with the foreground")
    assert launcher.started[1].killed


def test_on_a_gpu_jobs_start_once_the_ranks_have_trained(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor([job()], device="cuda") as running:
        soon(lambda: running._checks >= 3)
        assert not launcher.started
        running.foreground_trains()
        soon(lambda: launcher.started)


def test_each_rank_has_its_own_job(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor({1: [job()], 2: [job()]}, ranks=3):
        soon(lambda: len(launcher.started) == 2)
    assert [process.rank for process in launcher.started] == [1, 2]


def test_a_job_that_dies_is_started_again_as_often_as_allowed(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor([job(restarts=1)]) as running:
        soon(lambda: len(launcher.started) == 1)
        launcher.started[0].report(5)
        launcher.started[0].exit()
        soon(lambda: len(launcher.started) == 2)
        launcher.started[1].report(2)
        launcher.started[1].answer("failed", kind="error", text="failed in step 3: ValueError: boom")
        launcher.started[1].exit()
        soon(lambda: running.outcomes()[0].ended != "running")
    (outcome,) = running.outcomes()
    assert outcome.faults == ("was killed by signal 11", "failed in step 3: ValueError: boom")
    assert (outcome.ended, outcome.restarts, outcome.steps, outcome.samples) == (outcome.faults[1], 1, 2, 14)


@pytest.mark.parametrize("beginning", ["", "background job resnet18 of rank 0 cannot start: "])
def test_a_job_that_cannot_be_started_is_no_other_jobs_end(
    make_supervisor, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, beginning: str
) -> None:
    start = launcher.start

    def fails_once(*arguments: object) -> FakeProcess:
        monkeypatch.setattr(launcher, "start", start)
        raise RunError(f"{beginning}its fork server is gone")

    monkeypatch.setattr(launcher, "start", fails_once)
    with make_supervisor([job(), job()]) as running:
        soon(lambda: len(launcher.started) == 1)
        launcher.started[0].report(3)
        soon(lambda: running.outcomes()[1].steps == 3)
    assert running.outcomes()[0].ended == "it could not be started: its fork server is gone"


def test_a_restarted_job_keeps_its_last_loss_until_its_next_step() -> None:
    history = JobHistory(job(), rank=0)

    def report(process: JobProcess, samples: int, last_loss: float | None) -> float | None:
        losses = {"first_loss": last_loss, "last_loss": last_loss, "final_loss": last_loss}
        process.record_progress({"cpu": 1.0, "slowest": 0.1, "updates": 5, "samples": samples, **losses}, 0.0)
        return history.record.last_loss

    first, second = (JobProcess(history, FakeProcess(0, SimpleQueue()), ResourceWatch(None)) for _ in range(2))
    assert report(first, 10, 1.0) == 1.0
    assert report(second, 0, None) == 1.0
    # A step without a number for its loss.
    assert report(second, 2, None) is None


@pytest.mark.parametrize(
    "end",
    [
        lambda process: (process.answer("failed", kind="refusal", text="the dataset has 3 samples"), process.exit()),
        lambda process: process.report(7, event="left", why="its loss is nan after step 7"),
    ],
)
def test_a_fault_that_would_repeat_is_not_restarted(make_supervisor, launcher: FakeLauncher, end) -> None:
    with make_supervisor([job(restarts=3)]) as running:
        soon(lambda: len(launcher.started) == 1)
        end(launcher.started[0])
        soon(lambda: running.outcomes()[0].ended != "running")
    (outcome,) = running.outcomes()
    assert outcome.faults == (outcome.ended,)
    assert len(launcher.started) == 1


def test_a_job_that_hangs_starts_again(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor([job(restarts=1)]) as running:
        soon(lambda: len(launcher.started) == 1)
        launcher.started[0].report(4)
        soon(lambda: running.outcomes()[0].steps == 4)
        launcher.started[0].usage = Usage(cpu=1000.0, memory=GIB, runnable=True)
        soon(lambda: len(launcher.started) == 2)
        assert launcher.started[0].killed
    assert running.outcomes()[0].faults == ("hangs: it has used 999 s of CPU time without a step, after step 4",)


def test_a_job_over_its_budget_is_stopped(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor([job(memory=GIB), job()]) as running:
        soon(lambda: len(launcher.started) == 1)
        first = launcher.started[0]
        first.report(4)
        soon(lambda: running.outcomes()[0].steps == 4)
        first.usage = Usage(cpu=1.0, memory=1.5 * GIB, runnable=True)
        soon(lambda: first.sent[-1] == "rest")
        assert not first.killed
        first.report(5, event="left", why="asked")
        soon(lambda: len(launcher.started) == 2)
    assert running.outcomes()[0].ended == "evicted: it held 1.5 GiB of 1.0 GiB"
    assert running.outcomes()[0].steps == 5


def test_a_job_that_does_not_stop_is_killed(make_supervisor, launcher: FakeLauncher) -> None:
    with make_supervisor([job(memory=GIB)]) as running:
        soon(lambda: len(launcher.started) == 1)
        launcher.started[0].report(4)
        soon(lambda: running.outcomes()[0].steps == 4)
        launcher.started[0].usage = Usage(cpu=1.0, memory=1.5 * GIB, runnable=True)
        soon(lambda: launcher.started[0].killed)
    assert running.outcomes()[0].ended.endswith("it did not leave by itself, and was killed")


def test_when_memory_runs_short_the_largest_job_is_stopped_and_none_starts(
    make_supervisor, launcher: FakeLauncher, machine: SimpleNamespace
) -> None:
    with make_supervisor([job(), job(), job()], ranks=2) as running:
        soon(lambda: len(launcher.started) == 2)
        small, large = launcher.started
        large.usage = large.usage._replace(memory=3 * GIB)
        for process in (small, large):
            process.report(1)
        soon(lambda: [outcome.steps for outcome in running.outcomes()] == [1, 1, 0])
        machine.available = GIB
        soon(lambda: large.sent[-1] == "rest")
        large.report(2, event="left", why="asked")
        soon(lambda: large.killed)
        checks = running._checks
        soon(lambda: running._checks > checks + 3)
        assert len(launcher.started) == 2
        machine.available = 50 * GIB
        soon(lambda: len(launcher.started) == 3)
        # The one that was asked to stop next, while memory was still short.
        assert small.sent[-1] == "rest"
    assert running.outcomes()[1].ended == "evicted: the machine had 1.0 GiB left, it held 3.0 GiB"


def test_an_error_of_the_supervisor_ends_the_jobs_and_not_the_foreground(
    make_supervisor, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_supervisor([job()]) as running:
        soon(lambda: len(launcher.started) == 1)
        launcher.started[0].answer("progress")
        soon(lambda: launcher.started[0].killed)
    assert "the background jobs were given up, see the log" in running.events()


def test_a_job_whose_end_fails_keeps_no_other_one_running(
    make_supervisor, launcher: FakeLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(outcome: object) -> str:
        raise OSError(errno.EIO, "the disk is gone")

    with make_supervisor([job(on_end=fail) for _ in range(3)], ranks=3):
        soon(lambda: len(launcher.started) == 3)
    assert [process.killed for process in launcher.started] == [True] * 3
    assert "the background jobs were given up" in caplog.text
    assert "the end of the background job of rank 2 was not recorded" in caplog.text


def test_a_job_ends_also_where_its_descendants_cannot_be_read(
    make_supervisor, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(psutil, "Process", fail)
    with make_supervisor([job()]) as running:
        soon(lambda: len(launcher.started) == 1)
    assert launcher.started[0].killed
    assert [outcome.ended for outcome in running.outcomes()] == ["stopped with the foreground, before its first step"]


def test_limits_are_cleared_when_the_ranks_are_lost(make_supervisor, tmp_path: Path) -> None:
    running = make_supervisor([job(), job()], ranks=2)
    pages = [SharedPage(tmp_path, rank) for rank in range(2)]
    for page in pages:
        page.set_limits(open=False, share=0.0, banned=frozenset({("forward", 0)}))
        page.begin("forward", 0)
    running.foreground_lost()
    assert [page.limits for page in pages] == 2 * [(True, 1.0, frozenset())]
    assert [page.doing for page in pages] == [None, None]
