"""A rank that is killed or stopped ends all others in an error, over every transport."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deeppool.execution.transports.native.build import load_engine

RANKS = Path(__file__).with_name("lost_ranks.py")
SOON = 60.0
"""Seconds; at once on an idle machine."""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("transport", ["shared-memory", "tcp-python", "tcp-native"])
@pytest.mark.parametrize(
    ("lost", "mode"),
    [(signal.SIGKILL, "solo"), (signal.SIGSTOP, "full"), (signal.SIGSTOP, "solo"), (signal.SIGKILL, "straggler-aware")],
)
def test_the_others_end_in_an_error_soon(transport: str, lost: signal.Signals, mode: str, tmp_path: Path) -> None:
    if transport == "tcp-native" and load_engine() is None:
        pytest.skip("the native engine cannot be compiled here")
    # A stopped rank is only known by its silence; the end of a killed one is seen long before it counts as silent.
    timeout = 5 * SOON if lost == signal.SIGKILL else 2.0
    arguments = [sys.executable, str(RANKS), str(tmp_path), transport, mode, str(int(lost)), str(timeout)]
    subprocess.run(arguments, timeout=8 * SOON, check=True)
    others = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (1, 2)]
    assert all(each["seconds"] < SOON for each in others)
    if lost == signal.SIGKILL:
        assert {each["kind"] for each in others} == {"RankFailedError"}
        assert any("rank 0 of a partial all-reduce ended" in each["text"] for each in others)
    else:
        assert any("did not complete within 2 s" in each["text"] for each in others)
