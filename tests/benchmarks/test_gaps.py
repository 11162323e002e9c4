"""The benchmark of short waits runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "simulator" / "gaps.py"


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs SCHED_IDLE, of Linux")
def test_a_background_runs_in_the_waits_of_a_foreground(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, PATH, "-o", output, "--quick"], check=True, stdout=subprocess.PIPE, text=True
    )
    (found,) = json.loads(output.read_text())["rounds"]
    # Rests of 20 ms after work of 50 ms, and whatever else uses this machine.
    assert 0.05 < found["idle"] < 1
    assert done.stdout.splitlines()[2].startswith("| 20 | ")
