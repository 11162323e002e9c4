"""The comparison of allocators runs, and a process that keeps its memory asks for no more of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "kept-memory" / "main.py"


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc, of Linux")
@pytest.mark.stress
def test_allocators_are_compared(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    subprocess.run([sys.executable, PATH, "-o", output, "--quick"], check=True)
    glibc, kept = json.loads(output.read_text())["processes"]
    assert (glibc["how"], kept["how"]) == ("glibc", "glibc, freed memory kept")
    assert kept["faults"] < 500
    assert kept["milliseconds"] > 0
