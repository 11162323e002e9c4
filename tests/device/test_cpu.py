"""What a process has used of the CPU."""

import os
import subprocess
import sys
import time

import pytest

from deeppool.device.cpu import cpu_seconds_of


def test_the_clock_of_a_process_is_its_own() -> None:
    before, began = cpu_seconds_of(os.getpid()), time.process_time()
    while time.process_time() - began < 0.05:
        pass
    used = cpu_seconds_of(os.getpid()) - before
    assert used == pytest.approx(time.process_time() - began, abs=0.02)


def test_a_process_that_is_gone_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(ProcessLookupError, match=f"no process {child.pid}"):
        cpu_seconds_of(child.pid)
