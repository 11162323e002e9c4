"""Background jobs that hang or hold too much memory are found: on a virtual clock, and on real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deeppool.collocation import containment
from deeppool.collocation.containment import (
    BUSY_SECONDS,
    IDLE_SECONDS,
    STARTING_SECONDS,
    ResourceWatch,
    Usage,
    memory_shortage,
)
from deeppool.collocation.containment import group_usages as look

MIB = 2**20


def idle(cpu: float = 1.0) -> Usage:
    return Usage(cpu=cpu, memory=100 * MIB, runnable=False)


def runnable(cpu: float = 1.0) -> Usage:
    return Usage(cpu=cpu, memory=100 * MIB, runnable=True)


def test_a_job_that_waits_for_the_core_for_hours_does_not_hang() -> None:
    watch = ResourceWatch(None)
    watch.record_progress(0.0, cpu=1.0, slowest=0.1)
    assert all(watch.find_hang(float(now), runnable(), 1.0) is None for now in range(0, 36_000, 10))


def test_a_job_that_is_idle_for_long_hangs() -> None:
    watch = ResourceWatch(None)
    watch.record_progress(0.0, cpu=1.0, slowest=0.1)
    assert watch.find_hang(0.0, idle(), 1.0) is None
    assert watch.find_hang(IDLE_SECONDS - 1, idle(), 1.0) is None
    assert watch.find_hang(IDLE_SECONDS + 1, idle(), 1.0) == "hangs: it has done nothing for 61 s"


@pytest.mark.parametrize("sign", [lambda watch, now: watch.record_progress(now, 1.0, 0.1), lambda watch, now: None])
def test_progress_or_cpu_time_restarts_the_idle_timeout(sign) -> None:
    watch = ResourceWatch(None)
    watch.record_progress(0.0, cpu=1.0, slowest=0.1)
    watch.find_hang(1.0, idle(), 1.0)
    sign(watch, IDLE_SECONDS)
    # Half a second of CPU time, of a loader of data for example.
    assert watch.find_hang(IDLE_SECONDS, idle(1.5), 1.0) is None
    assert watch.find_hang(2 * IDLE_SECONDS - 1, idle(1.5), 1.0) is None
    assert watch.find_hang(2 * IDLE_SECONDS + 1, idle(1.5), 1.0) is not None


def test_a_job_that_uses_the_time_of_many_steps_without_one_hangs() -> None:
    watch = ResourceWatch(None)
    watch.record_progress(0.0, cpu=5.0, slowest=0.1)
    assert watch.find_hang(1.0, runnable(), 5.0 + BUSY_SECONDS - 1) is None
    assert "31 s of CPU time without a step" in watch.find_hang(2.0, runnable(), 5.0 + BUSY_SECONDS + 1)


def test_slow_steps_and_a_slow_start_have_longer_timeouts() -> None:
    watch = ResourceWatch(None)
    assert watch.find_hang(1.0, runnable(), STARTING_SECONDS - 1) is None
    assert watch.find_hang(2.0, runnable(), STARTING_SECONDS + 1) is not None
    # Reported before the first step: the step itself may take long.
    watch.record_progress(2.0, cpu=300.0, slowest=0.0)
    assert watch.find_hang(2.0, runnable(), 300.0 + STARTING_SECONDS - 1) is None
    watch.record_progress(3.0, cpu=400.0, slowest=10.0)
    assert watch.find_hang(4.0, runnable(), 400.0 + 99) is None
    assert watch.find_hang(5.0, runnable(), 400.0 + 101) is not None


def test_a_job_over_its_budget_is_described_with_both_sizes() -> None:
    watch = ResourceWatch(100 * MIB)
    assert watch.over_budget(idle()) is None
    assert watch.over_budget(idle()._replace(memory=101 * MIB)) == "evicted: it held 101.0 MiB of 100.0 MiB"
    assert ResourceWatch(None).over_budget(idle()._replace(memory=1e15)) is None


def test_a_machine_is_short_below_a_twentieth_of_its_memory_or_two_gibibytes() -> None:
    assert memory_shortage(20 * 2**30, 1.1 * 2**30) is None
    assert memory_shortage(20 * 2**30, 0.75 * 2**30) == 2**28
    assert memory_shortage(1000 * 2**30, 2.1 * 2**30) is None
    assert memory_shortage(1000 * 2**30, 1.5 * 2**30) == 2**29


# -- real processes ---------------------------------------------------------------------------------

# Two processes: the parent holds 64 MiB of its own; the child, forked afterwards, 32 MiB more.
PROGRAM = """
import mmap, os, sys
def hold(size):
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, size, 4096):
        pages[start] = 1
    return pages
if os.fork() == 0:
    kept = hold(32 * 2**20)
else:
    kept = hold(64 * 2**20)
print(flush=True)
BUSY
"""


@contextmanager
def group(then: str) -> Iterator[int]:
    command = [sys.executable, "-c", PROGRAM.replace("BUSY", then)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        try:
            for _ in range(2):
                process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def test_a_groups_usage_is_that_of_all_its_processes() -> None:
    with group("import signal; signal.pause()") as leader:
        # They have said that they hold it, and go to sleep next.
        deadline = time.monotonic() + 300
        while look([leader])[leader].runnable and time.monotonic() < deadline:
            time.sleep(0.01)
        found = look([leader, 2**22 + 1])
        assert list(found) == [leader]
        assert 96 * MIB < found[leader].memory < 160 * MIB
        assert found[leader].cpu > 0
        deadline = time.monotonic() + 300
        while look([leader])[leader].runnable:
            assert time.monotonic() < deadline, "it has nothing left to do"


def test_a_process_in_a_loop_is_runnable_whether_or_not_it_has_the_core() -> None:
    with group("while True: pass") as leader:
        assert look([leader])[leader].runnable
    assert "running" in containment.RUNNABLE
