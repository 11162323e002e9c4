"""Background jobs in processes of their own: how steps are counted, and that they have the priority and the core that
they say."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base.sharing import Sharing
from deeppool.collocation.background_jobs import BackgroundJobs, WorkDone, split_log, steps_done
from deeppool.collocation.helper_processes import BACKGROUND, HelperProcesses
from deeppool.collocation.job_queue import BackgroundJob, save_background_job
from deeppool.device.cpu import usable_cores
from deeppool.errors import RunError
from deeppool.job import Job
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.shared_page import SharedPage
from tests.processes.children import backgrounds
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("in_the_checkout")

JOB = Job("examples.two_branch:two_branch", (3, 32, 32), batch=4)


# -- counting ---------------------------------------------------------------------------------------

# (clock, CPU seconds, loss): a step of 2 s, and one of 4 s that had the core half of the time.
LOG = [(10.0, 1.0, 0.0), (12.0, 3.0, 2.3), (16.0, 5.0, 2.2)]


@pytest.mark.parametrize(
    ("ended", "cpu", "expected"),
    [
        (17.0, 5.0, 2.0),
        (16.0, 5.0, 2.0),
        (14.0, 3.5, 1.25),  # 0.5 of the second step's 2 CPU seconds
        (12.0, 3.0, 1.0),
        (11.0, 1.5, 0.25),
        (10.5, 1.0, 0.0),  # it waited for the core
        (14.0, 2.99, 1.0),  # the system's count of CPU time is coarser than the process's own
        (14.0, 5.01, 2.0),
    ],
)
def test_a_step_cut_by_the_end_counts_by_its_share_of_cpu_time(ended: float, cpu: float, expected: float) -> None:
    assert steps_done(LOG, ended, cpu) == pytest.approx(expected)


def test_a_job_that_never_got_the_core_did_nothing() -> None:
    assert steps_done([(10.0, 1.0, 0.0)], 20.0, 1.0) == 0


def test_a_step_without_cpu_time_counts_when_it_is_finished_only() -> None:
    log = [(10.0, 1.0, 0.0), (12.0, 1.0, 2.3)]
    assert steps_done(log, 11.0, 1.0) == 0
    assert steps_done(log, 12.0, 1.0) == 1


@given(st.lists(st.floats(0.01, 2), min_size=1, max_size=6), st.floats(0, 15), st.floats(0, 15))
def test_steps_done_lies_between_those_finished_and_one_more(durations: list[float], ended: float, cpu: float) -> None:
    clocks = [sum(durations[:count]) for count in range(len(durations) + 1)]
    log = [(clock, clock / 2, 0.0) for clock in clocks]
    finished = sum(clock <= ended for clock in clocks[1:])
    assert finished <= steps_done(log, ended, cpu) <= min(finished + 1, len(durations))


# -- processes --------------------------------------------------------------------------------------


@contextmanager
def jobs_of(
    job: Job, launcher: LocalLauncher, sharing: Sharing, *, reports_progress: bool = False
) -> Iterator[BackgroundJobs]:
    background = BackgroundJob(job)
    saved = save_background_job(background, Path(launcher.worker_spec(0).folder))
    with HelperProcesses() as processes:
        processes.start(launcher, 0, BACKGROUND, "background job", **saved, sharing=asdict(sharing))
        yield BackgroundJobs(background, processes, reports_progress=reports_progress)


def steps_reported(group: BackgroundJobs) -> int:
    group.poll()
    return group.reports[0].steps


def cpu_of_threads(process: psutil.Process) -> dict[int, float]:
    """CPU seconds of each thread by the scheduler's counters: the times of ``psutil`` grow by ticks of 10 ms."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) * 1e-9 for task in tasks}


def is_idle_class(thread: int) -> bool:
    return os.sched_getscheduler(thread) == os.SCHED_IDLE


@pytest.fixture
def launcher(tmp_path: Path) -> LocalLauncher:
    local = LocalLauncher("cpu", 1)
    local.distribute_files(tmp_path)
    return local


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no SCHED_IDLE")
def test_all_that_a_background_job_computes_has_the_lowest_priority_and_its_core(launcher: LocalLauncher) -> None:
    core = usable_cores()[0]
    with jobs_of(JOB, launcher, Sharing()) as group:
        group.wait_until_ready()
        (process,) = backgrounds()
        assert group.priority == "SCHED_IDLE"
        assert group.step_seconds > 0
        assert is_idle_class(process.pid)
        assert process.cpu_affinity() == [core]
        # When memory runs out the kernel takes it before any rank.
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text().strip() == "1000"

        # Where something else uses this core, a second of the lowest priority takes minutes: a few steps are enough.
        before = cpu_of_threads(process)
        started = time.perf_counter()
        group.begin()
        wait_until(lambda: sum(cpu_of_threads(process).values()) > sum(before.values()) + 0.1, seconds=500)
        used = {thread: cpu - before.get(thread, 0.0) for thread, cpu in cpu_of_threads(process).items()}
        # A priority belongs to a thread; torch may have started some of its own before it was lowered.
        assert sum(cpu for thread, cpu in used.items() if not is_idle_class(thread)) <= 0.1 * sum(used.values())
        busy = {core for thread, cpu in used.items() if cpu > 0.02 for core in os.sched_getaffinity(thread)}
        assert busy == {core}

        work = WorkDone()
        group.measure(work, started)
    assert work.steps > 0
    assert work.seconds > 0.1
    assert all(map(math.isfinite, work.losses))
    assert {span.kind for span in work.spans} == {"background"}
    assert group.ended == "stopped"
    assert not process.is_running()


@pytest.mark.slow
@pytest.mark.processes
def test_spans_show_when_a_job_computed_and_not_when_it_was_held_back(launcher: LocalLauncher) -> None:
    folder = Path(launcher.worker_spec(0).folder)
    with jobs_of(JOB, launcher, Sharing(priority="normal", pieces=2), reports_progress=True) as group:
        group.wait_until_ready()
        page = SharedPage(folder, 0)
        page.set_limits(open=False, share=1.0, banned=frozenset())
        started = time.perf_counter()
        group.begin()
        (process,) = backgrounds()
        # It sleeps while it is held back: it was in its first piece once it has woken up to look again.
        woken = process.num_ctx_switches().voluntary
        wait_until(lambda: process.num_ctx_switches().voluntary > woken + 5, seconds=300)
        opened = time.perf_counter()
        page.set_limits(open=True, share=1.0, banned=frozenset())
        before = steps_reported(group)
        # On a busy machine few pieces are seen at work by a sample of the core: it was three of eighteen.
        wait_until(lambda: steps_reported(group) > before + 80, seconds=300)
        work = WorkDone()
        group.measure(work, started)
        page.close()
    assert len(work.spans) >= 3 * 3
    assert min(span.start for span in work.spans) >= opened > started
    assert all(span.end >= span.start for span in work.spans)
    assert {span.name.partition(": ")[2] for span in work.spans} >= {"forward", "backward", "update"}


@pytest.mark.processes
def test_other_policies_grant_their_priority(launcher: LocalLauncher) -> None:
    mine = psutil.Process().nice()
    as_nice, as_equal = Sharing(priority="nice"), Sharing(priority="normal")
    with jobs_of(JOB, launcher, as_nice) as nice, jobs_of(JOB, launcher, as_equal) as naive:
        nice.wait_until_ready()
        naive.wait_until_ready()
        found = sorted((process.nice(), os.sched_getscheduler(process.pid)) for process in backgrounds())
        assert (nice.priority, naive.priority) == ("nice 19", "normal")
        assert found == [(mine, os.SCHED_OTHER), (19, os.SCHED_OTHER)]


@pytest.mark.slow
@pytest.mark.processes
def test_the_error_of_a_background_job_that_cannot_start_has_its_reason(launcher: LocalLauncher) -> None:
    job = Job(JOB.model, (1, 32, 32), batch=4)
    with jobs_of(job, launcher, Sharing()) as group, pytest.raises(RunError, match=r"cannot start: .* channels"):
        group.wait_until_ready()
    assert backgrounds() == []


# -- a phase in parts ---------------------------------------------------------------------------------


class LateChannel:
    """A job that makes a step of a CPU second each second from 0 on, and whose phase ends at 10."""

    def send(self, command: str, **arguments: float) -> None:
        self.until = arguments["until"]

    def cpu_seconds(self) -> dict[int, float]:
        return {0: 10.0}

    def collect(self, event: str, timeout: float) -> dict[int, dict]:
        log = [(float(clock), float(clock), 1.0) for clock in range(12)]
        return {0: {"log": log, "pieces": [], "clock": 11.0, "updates": 11, "samples": 11}}


@pytest.mark.parametrize(("ended", "steps"), [(None, 10.0), (4.25, 4.25), (10.0, 10.0), (12.0, 10.0)])
def test_what_a_job_does_after_the_foreground_has_ended_does_not_count(
    ended: float | None, steps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that is held up, as by a slow callback, notices that late."""
    monkeypatch.setattr("deeppool.collocation.background_jobs.time", SimpleNamespace(perf_counter=lambda: 10.0))
    work = WorkDone()
    channel = LateChannel()
    BackgroundJobs(BackgroundJob(JOB), channel).measure(work, 0.0, ended)  # type: ignore[arg-type]
    assert (work.steps, work.seconds, work.phases) == (pytest.approx(steps), pytest.approx(steps), [])
    # A job in a rank's process counts by itself.
    assert channel.until == pytest.approx(steps)


def test_steps_and_losses_of_a_split_phase_go_to_both_parts() -> None:
    before, after = split_log(LOG, [(14.0, 3.5), (15.0, 4.5)])
    assert before == (pytest.approx(1.25), [2.3])
    assert after == (pytest.approx(0.5), [2.2])


@given(st.lists(st.floats(0.01, 2), min_size=1, max_size=6), st.lists(st.floats(0, 15), min_size=1, max_size=4))
def test_the_parts_of_a_phase_add_up_to_the_whole(durations: list[float], cuts: list[float]) -> None:
    clocks = [sum(durations[:count]) for count in range(len(durations) + 1)]
    log = [(clock, clock / 2, 1.0) for clock in clocks]
    at = [(clock, clock / 2) for clock in sorted(cuts)]
    parts = split_log(log, at)
    assert sum(steps for steps, _ in parts) == pytest.approx(steps_done(log, *at[-1]))
    assert all(steps >= 0 for steps, _ in parts)
    assert sum(len(losses) for _, losses in parts) == len(durations)


def test_no_part_of_a_phase_takes_steps_from_the_one_before() -> None:
    """The CPU time by the end of the last part is estimated: here less than was read when the part before ended."""
    before, after = split_log(LOG, [(14.0, 4.0), (14.5, 3.5)])
    assert before == (pytest.approx(1.5), [2.3])
    assert after == (0.0, [2.2])
