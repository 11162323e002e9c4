"""When a background job is judged to hang or to hold too much: by a clock of the test's own, and on real processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deeppool.collocation import containment
from deeppool.collocation.containment import (
    CIRCLING_SECONDS,
    STARTING_SECONDS,
    STILL_SECONDS,
    ResourceWatch,
    Usage,
    shortage,
)
from deeppool.collocation.containment import usages as look

MIB = 2**20


def idle(cpu: float = 1.0) -> Usage:
    return Usage(cpu=cpu, memory=100 * MIB, wants=False)


def wanting(cpu: float = 1.0) -> Usage:
    return Usage(cpu=cpu, memory=100 * MIB, wants=True)


def test_a_job_that_waits_for_the_core_for_hours_does_not_hang() -> None:
    watch = ResourceWatch(None)
    watch.got_on(0.0, cpu=1.0, slowest=0.1)
    assert all(watch.hangs(float(now), wanting(), 1.0) is None for now in range(0, 36_000, 10))


def test_a_job_that_wants_nothing_for_long_hangs() -> None:
    watch = ResourceWatch(None)
    watch.got_on(0.0, cpu=1.0, slowest=0.1)
    assert watch.hangs(0.0, idle(), 1.0) is None
    assert watch.hangs(STILL_SECONDS - 1, idle(), 1.0) is None
    assert watch.hangs(STILL_SECONDS + 1, idle(), 1.0) == "hangs: it has done nothing for 61 s"


@pytest.mark.parametrize("sign", [lambda watch, now: watch.got_on(now, 1.0, 0.1), lambda watch, now: None])
def test_a_sign_of_life_or_cpu_time_in_between_starts_the_patience_anew(sign) -> None:
    watch = ResourceWatch(None)
    watch.got_on(0.0, cpu=1.0, slowest=0.1)
    watch.hangs(1.0, idle(), 1.0)
    sign(watch, STILL_SECONDS)
    # Half a second of CPU time, of a loader of data for example.
    assert watch.hangs(STILL_SECONDS, idle(1.5), 1.0) is None
    assert watch.hangs(2 * STILL_SECONDS - 1, idle(1.5), 1.0) is None
    assert watch.hangs(2 * STILL_SECONDS + 1, idle(1.5), 1.0) is not None


def test_a_job_that_uses_the_time_of_many_steps_without_one_hangs() -> None:
    watch = ResourceWatch(None)
    watch.got_on(0.0, cpu=5.0, slowest=0.1)
    assert watch.hangs(1.0, wanting(), 5.0 + CIRCLING_SECONDS - 1) is None
    assert "31 s of CPU time without a step" in watch.hangs(2.0, wanting(), 5.0 + CIRCLING_SECONDS + 1)


def test_slow_steps_and_a_slow_start_have_more_patience() -> None:
    watch = ResourceWatch(None)
    assert watch.hangs(1.0, wanting(), STARTING_SECONDS - 1) is None
    assert watch.hangs(2.0, wanting(), STARTING_SECONDS + 1) is not None
    watch.got_on(3.0, cpu=400.0, slowest=10.0)
    assert watch.hangs(4.0, wanting(), 400.0 + 99) is None
    assert watch.hangs(5.0, wanting(), 400.0 + 101) is not None


def test_over_the_budget_is_told_with_both_sizes() -> None:
    watch = ResourceWatch(100 * MIB)
    assert watch.over_budget(idle()) is None
    assert watch.over_budget(idle()._replace(memory=101 * MIB)) == "evicted: it held 101.0 MiB of 100.0 MiB"
    assert ResourceWatch(None).over_budget(idle()._replace(memory=1e15)) is None


def test_a_machine_is_short_below_a_twentieth_of_its_memory_or_two_gibibytes() -> None:
    assert shortage(20 * 2**30, 1.1 * 2**30) is None
    assert shortage(20 * 2**30, 0.75 * 2**30) == 2**28
    assert shortage(1000 * 2**30, 2.1 * 2**30) is None
    assert shortage(1000 * 2**30, 1.5 * 2**30) == 2**29


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


def test_a_group_is_looked_at_with_all_its_processes() -> None:
    with group("import signal; signal.pause()") as leader:
        # They have said that they hold it, and go to sleep next.
        deadline = time.monotonic() + 30
        while look([leader])[leader].wants and time.monotonic() < deadline:
            time.sleep(0.01)
        found = look([leader, 2**22 + 1])
        assert list(found) == [leader]
        assert 96 * MIB < found[leader].memory < 160 * MIB
        assert found[leader].cpu > 0
        deadline = time.monotonic() + 60
        while look([leader])[leader].wants:
            assert time.monotonic() < deadline, "it has nothing left to do"


def test_a_process_in_a_loop_wants_the_core_whoever_has_it() -> None:
    with group("while True: pass") as leader:
        assert look([leader])[leader].wants
    assert "running" in containment.WANTING
