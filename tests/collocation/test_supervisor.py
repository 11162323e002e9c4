"""What the launcher makes of what its background processes do; the processes are played."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from deeppool.base.sharing import Sharing
from deeppool.collocation import containment
from deeppool.collocation import supervisor as host_module
from deeppool.collocation.containment import Usage
from deeppool.collocation.job_queue import BackgroundJob, JobQueue, Lines
from deeppool.collocation.supervisor import Supervisor
from deeppool.job import Job
from deeppool.processes.managed_process import Inbox
from deeppool.processes.shared_page import SharedPage

GIB = 2**30
PIDS = itertools.count(2**22 + 1)
"""That no process has."""


class Played:
    """A process of which the test says what it does."""

    def __init__(self, rank: int, inbox: Inbox) -> None:
        self.rank, self.inbox = rank, inbox
        self.process = SimpleNamespace(pid=next(PIDS))
        self.sent: list[str] = []
        self.killed = False
        self.usage = Usage(cpu=1.0, memory=0.5 * GIB, wants=True)

    def send(self, command: str, **arguments: object) -> None:
        self.sent.append(command)

    def cpu_seconds(self) -> float:
        return self.usage.cpu

    def fate(self) -> str:
        return "was killed by signal 11"

    def kill(self) -> None:
        self.killed = True

    def says(self, event: str, **content: object) -> None:
        self.inbox.put((self, {"event": event, **content}))

    def gets_on(self, updates: int, *, event: str = "progress", **content: object) -> None:
        told = {"updates": updates, "samples": 2 * updates, "first_loss": 2.0, "last_loss": 1.0}
        self.says(event, **told, cpu=self.usage.cpu, slowest=0.1, **content)

    def dies(self) -> None:
        self.inbox.put((self, None))


class Theatre:
    """Where the processes are played."""

    def __init__(self) -> None:
        self.started: list[Played] = []

    def slot(self, rank: int) -> SimpleNamespace:
        return SimpleNamespace(core=rank, index=rank)

    def start(self, rank: int, module: str, name: str, inbox: Inbox) -> Played:
        self.started.append(Played(rank, inbox))
        return self.started[-1]


@pytest.fixture
def theatre() -> Theatre:
    return Theatre()


@pytest.fixture
def machine(theatre: Theatre, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    memory = SimpleNamespace(total=100 * GIB, available=50 * GIB)

    def usages(groups: Iterator[int]) -> dict[int, Usage]:
        wanted = set(groups)
        return {played.process.pid: played.usage for played in theatre.started if played.process.pid in wanted}

    monkeypatch.setattr(containment, "usages", usages)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(host_module, "TICK", 0.01)
    monkeypatch.setattr(host_module, "SHORT_LEAVE_SECONDS", 0.5)
    return memory


@pytest.fixture
def host(theatre: Theatre, machine: SimpleNamespace, tmp_path: Path) -> Callable[..., Supervisor]:
    def make(jobs: Lines, ranks: int = 1) -> Supervisor:
        return Supervisor(JobQueue(jobs, ranks), theatre, ranks, "cpu", Sharing(), tmp_path)

    return make


def job(**choices: object) -> BackgroundJob:
    return BackgroundJob(Job("resnet18", (3, 32, 32), batch=2), **choices)


def soon(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_finished_job_makes_room_for_the_next(host, theatre: Theatre) -> None:
    with host([job(steps=9), job()]) as running:
        soon(lambda: len(theatre.started) == 1)
        first = theatre.started[0]
        assert first.sent == ["setup", "serve"]
        first.says("ready", priority="SCHED_IDLE")
        first.gets_on(9, event="left", why="finished")
        soon(lambda: len(theatre.started) == 2)
        assert first.killed
        theatre.started[1].gets_on(3)
        soon(lambda: running.outcomes()[1].steps == 3)
        news = running.news()
        assert news == ["background job resnet18 of rank 0: finished"]
    done, stopped = running.outcomes()
    assert (done.ended, done.steps, done.samples, done.priority) == ("finished", 9, 18, "SCHED_IDLE")
    assert stopped.ended.startswith("stopped with the foreground")
    assert theatre.started[1].killed


def test_each_rank_has_its_own_job(host, theatre: Theatre) -> None:
    with host({1: [job()], 2: [job()]}, ranks=3):
        soon(lambda: len(theatre.started) == 2)
    assert [played.rank for played in theatre.started] == [1, 2]


def test_a_job_that_dies_starts_again_as_often_as_it_may(host, theatre: Theatre) -> None:
    with host([job(restarts=1)]) as running:
        soon(lambda: len(theatre.started) == 1)
        theatre.started[0].gets_on(5)
        theatre.started[0].dies()
        soon(lambda: len(theatre.started) == 2)
        theatre.started[1].gets_on(2)
        theatre.started[1].says("failed", kind="error", text="failed in step 3: ValueError: boom")
        theatre.started[1].dies()
        soon(lambda: running.outcomes()[0].ended != "running")
    (outcome,) = running.outcomes()
    assert outcome.faults == ("was killed by signal 11", "failed in step 3: ValueError: boom")
    assert (outcome.ended, outcome.restarts, outcome.steps, outcome.samples) == (outcome.faults[1], 1, 2, 14)


@pytest.mark.parametrize(
    "end",
    [
        lambda played: (played.says("failed", kind="refusal", text="the dataset has 3 samples"), played.dies()),
        lambda played: played.gets_on(7, event="left", why="its loss is nan after step 7"),
    ],
)
def test_what_would_end_the_same_way_again_is_not_started_again(host, theatre: Theatre, end) -> None:
    with host([job(restarts=3)]) as running:
        soon(lambda: len(theatre.started) == 1)
        end(theatre.started[0])
        soon(lambda: running.outcomes()[0].ended != "running")
    (outcome,) = running.outcomes()
    assert outcome.faults == (outcome.ended,)
    assert len(theatre.started) == 1


def test_a_job_that_hangs_starts_again(host, theatre: Theatre) -> None:
    with host([job(restarts=1)]) as running:
        soon(lambda: len(theatre.started) == 1)
        theatre.started[0].gets_on(4)
        soon(lambda: running.outcomes()[0].steps == 4)
        theatre.started[0].usage = Usage(cpu=1000.0, memory=GIB, wants=True)
        soon(lambda: len(theatre.started) == 2)
        assert theatre.started[0].killed
    assert running.outcomes()[0].faults == ("hangs: it has used 999 s of CPU time without a step, after step 4",)


def test_a_job_over_its_budget_leaves_its_place(host, theatre: Theatre) -> None:
    with host([job(memory=GIB), job()]) as running:
        soon(lambda: len(theatre.started) == 1)
        first = theatre.started[0]
        first.gets_on(4)
        soon(lambda: running.outcomes()[0].steps == 4)
        first.usage = Usage(cpu=1.0, memory=1.5 * GIB, wants=True)
        soon(lambda: first.sent[-1] == "rest")
        assert not first.killed
        first.gets_on(5, event="left", why="asked")
        soon(lambda: len(theatre.started) == 2)
    assert running.outcomes()[0].ended == "evicted: it held 1.5 GiB of 1.0 GiB"
    assert running.outcomes()[0].steps == 5


def test_a_job_that_does_not_leave_is_killed(host, theatre: Theatre) -> None:
    with host([job(memory=GIB)]) as running:
        soon(lambda: len(theatre.started) == 1)
        theatre.started[0].gets_on(4)
        soon(lambda: running.outcomes()[0].steps == 4)
        theatre.started[0].usage = Usage(cpu=1.0, memory=1.5 * GIB, wants=True)
        soon(lambda: theatre.started[0].killed)
    assert running.outcomes()[0].ended.endswith("it did not leave by itself, and was killed")


def test_on_a_machine_that_runs_short_the_largest_goes_and_nobody_comes(
    host, theatre: Theatre, machine: SimpleNamespace
) -> None:
    with host([job(), job(), job()], ranks=2) as running:
        soon(lambda: len(theatre.started) == 2)
        small, large = theatre.started
        large.usage = large.usage._replace(memory=3 * GIB)
        for played in (small, large):
            played.gets_on(1)
        soon(lambda: [outcome.steps for outcome in running.outcomes()] == [1, 1, 0])
        machine.available = GIB
        soon(lambda: large.sent[-1] == "rest")
        large.gets_on(2, event="left", why="asked")
        soon(lambda: large.killed)
        looks = running._looks
        soon(lambda: running._looks > looks + 3)
        assert len(theatre.started) == 2
        machine.available = 50 * GIB
        soon(lambda: len(theatre.started) == 3)
        # The one that was told to go next, while it was still short.
        assert small.sent[-1] == "rest"
    assert running.outcomes()[1].ended == "evicted: the machine had 1.0 GiB left, it held 3.0 GiB"


def test_a_mistake_of_its_own_ends_the_jobs_and_not_the_foreground(
    host, theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    with host([job()]) as running:
        soon(lambda: len(theatre.started) == 1)
        theatre.started[0].says("progress")
        soon(lambda: theatre.started[0].killed)
    assert "the background jobs were given up, see the log" in running.news()


def test_when_the_ranks_are_lost_the_jobs_are_not_held_back_by_their_last_orders(host, tmp_path: Path) -> None:
    running = host([job(), job()], ranks=2)
    boards = [SharedPage(tmp_path, rank) for rank in range(2)]
    for board in boards:
        board.order(open=False, share=0.0, banned=frozenset({("forward", 0)}))
        board.begin("forward", 0)
    running.foreground_lost()
    assert [board.orders for board in boards] == 2 * [(True, 1.0, frozenset())]
    assert [board.doing for board in boards] == [None, None]
