"""When a process had its core: never while it was stopped, and as long as its CPU time in all."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from deeppool.collocation.cpu_sampler import CpuSampler, computing_intervals, intersections

COMPUTES = """
import json, sys, threading
import torch
from deeppool.collocation.cpu_sampler import CpuSampler
torch.set_num_threads(1)
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ends.set()), daemon=True).start()
sampler, square = CpuSampler(), torch.ones(200, 200)
with sampler.sampling():
    print("computes", flush=True)
    while not ends.is_set():
        square = square @ square / square.norm()
print(json.dumps(list(sampler.samples)))
"""


@pytest.mark.slow
def test_a_stopped_process_has_no_core() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "computes\n"
        stops = []
        for _ in range(3):
            used = cpu_seconds(process.pid)
            while cpu_seconds(process.pid) < used + 0.1:
                time.sleep(0.001)
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            since = time.perf_counter()
            time.sleep(0.2)
            stops.append((since, time.perf_counter()))
            os.kill(process.pid, signal.SIGCONT)
        print(file=process.stdin, flush=True)
        samples = json.loads(process.stdout.read())
    computing = computing_intervals(samples)
    between = max(after - before for (_, before), (_, after) in pairwise(samples))
    assert between < 0.05
    for since, until in stops:
        inside = sum(max(0.0, min(end, until) - max(start, since)) for start, end in computing)
        assert inside <= between
    assert sum(end - start for start, end in computing) == pytest.approx(samples[-1][1] - samples[0][1], rel=0.15)


def cpu_seconds(process: int) -> float:
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_cpu_time_is_put_before_the_sample_that_saw_it() -> None:
    samples = [(0.0, 0.0), (0.004, 0.004), (0.020, 0.008), (0.024, 0.0119), (0.124, 0.0119)]
    assert computing_intervals(samples) == [(0.0, 0.004), (pytest.approx(0.016), 0.024)]


def test_two_threads_on_two_cores_fill_the_time_and_no_more() -> None:
    assert computing_intervals([(1.0, 0.0), (1.5, 1.0)]) == [(1.0, 1.5)]


def test_pieces_are_cut_to_what_was_computed() -> None:
    pieces = [("forward", 0.0, 2.0), ("backward", 2.5, 6.0), ("update", 6.0, 7.0)]
    assert intersections(pieces, [(1.0, 3.0), (4.0, 6.5), (8.0, 9.0)]) == [
        ("forward", 1.0, 2.0), ("backward", 2.5, 3.0), ("backward", 4.0, 6.0), ("update", 6.0, 6.5),
    ]  # fmt: skip


def test_a_signal_handler_of_the_job_is_put_back() -> None:
    before = signal.getsignal(signal.SIGPROF)
    with CpuSampler().sampling():
        assert signal.getsignal(signal.SIGPROF) != before
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
