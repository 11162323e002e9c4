"""The delay that the kernel counts is the time in which a thread wanted a core and another had it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deeppool.records.run_record import WakeDelay, summarise_delays
from deeppool.telemetry.run_delay import RunDelayMeter

counted = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system counts no run delays")
SECONDS = 0.5


def waited() -> float:
    """Seconds that this thread did not run; if it never sleeps, it waited for a core."""
    return time.perf_counter() - time.thread_time()


@counted
def test_a_thread_that_ends_meanwhile_does_not_keep_the_others_from_being_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, opened = os.open, []

    def first_has_ended(path: Path, flags: int) -> int:
        opened.append(path)
        if len(opened) == 1:
            raise FileNotFoundError(path)
        return opening(path, flags)

    lasting = threading.Event()
    thread = threading.Thread(target=lasting.wait)
    thread.start()
    try:
        monkeypatch.setattr(os, "open", first_has_ended)
        meter = RunDelayMeter()
        monkeypatch.undo()
        assert len(meter._files) == len(opened) - 1 > 0
        meter.close()
    finally:
        lasting.set()
        thread.join()


@counted
def test_the_delay_beside_a_busy_process_is_the_wall_time_without_the_cpu_time() -> None:
    cores = os.sched_getaffinity(0)
    core = min(cores)
    busy = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
    # Of the threads: the affinity of this process is that of its main thread, which runs this.
    os.sched_setaffinity(0, {core})
    try:
        meter = RunDelayMeter()
        # The thread may be displaced between two statements: its delay since the lap lies between these two.
        before = waited()
        meter.lap()
        began = waited()
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            pass
        ended = waited()
        found = meter.lap()
        after = waited()
    finally:
        os.sched_setaffinity(0, cores)
        busy.kill()
        busy.wait()
        meter.close()
    # Another process may run only when this one is displaced.
    assert ended - began > SECONDS / 10
    assert 0.8 * (ended - began) <= found.seconds <= 1.2 * (after - before)
    assert found.times > 1


def test_a_system_without_counters_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", missing)
    meter = RunDelayMeter()
    assert summarise_delays([meter.lap()]) is None


def test_delays_are_summarised_by_iteration() -> None:
    # 1, 2 and 4 ms a wake-up; in one iteration no thread waited for anything.
    delays = [(0.010, 10), (0.002, 1), (0.0, 0), (0.016, 4)]
    found = summarise_delays(delays)
    assert found == WakeDelay(pytest.approx(0.002), pytest.approx(0.004 - 0.02 * 0.002), pytest.approx(0.028 / 3), 3)
    assert str(found) == "p50 2 ms, p99 3.96 ms, 9.33 ms an iteration, added over a rank's threads"
