"""The times of ranks on other machines of a Ray cluster are on the launcher's clock."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from deeppool.coordinator import ray_launcher
from deeppool.coordinator.ray_launcher import RayLauncher, RaySlot
from deeppool.coordinator.runtime import Runtime
from tests.conftest import CHECKOUT

AHEAD = 5000
"""Seconds."""
OTHER_CLOCK = ("unshare", "--time", "--monotonic", str(AHEAD), "--fork", "--kill-child")
RUNTIME = """
import json, sys
from deeppool.coordinator.runtime import Runtime

runtime = Runtime("cpu", "127.0.0.1", 0)
for line in sys.stdin:
    print(json.dumps(runtime.clock()), flush=True)
"""
"""A runtime's process, asked for its clock by a line."""


class Node:
    """A runtime as its handle of Ray shows it, which answers when called."""

    def __init__(self, clock: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self.clock = self._method(clock)
        self.start = self._method(lambda *_: 0)
        self.messages = self._method(lambda key: [None])
        self.call = self._method(lambda key, method, *given, **named: self.sent.append(named))

    @staticmethod
    def _method(function: Any) -> Any:
        return SimpleNamespace(remote=function)


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Any:
    errors = dict.fromkeys(("RayError", "RayActorError", "GetTimeoutError"), ConnectionError)
    ray = SimpleNamespace(get=lambda found, timeout=None: found, exceptions=SimpleNamespace(**errors))
    monkeypatch.setattr(ray_launcher, "find_ray", lambda: ray)

    def send_to(clock: Any) -> float:
        node = Node(clock)
        launcher = RayLauncher(1, [RaySlot(0, "machine", node)], "/", reassign=list)
        launcher.start(0, "module", "rank 0").send("train", steps=1)
        (arguments,) = node.sent
        assert arguments["steps"] == 1
        return float(arguments["clock"])

    return send_to


@pytest.fixture
def clock_of_another_machine() -> Iterator[Any]:
    """What a runtime answers in a process whose system clock is another one."""
    if subprocess.run([*OTHER_CLOCK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine permits no namespaces of time")
    with subprocess.Popen(
        [*OTHER_CLOCK, sys.executable, "-c", RUNTIME],
        cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as there:  # fmt: skip
        assert there.stdin is not None
        assert there.stdout is not None
        stdin, stdout = there.stdin, there.stdout

        def ask() -> Any:
            stdin.write("\n")
            return tuple(json.loads(stdout.readline()))

        yield ask
        stdin.close()


@pytest.mark.root
@pytest.mark.processes
def test_a_rank_gets_the_seconds_that_bring_its_machines_clock_to_the_launchers(
    send: Any, clock_of_another_machine: Any
) -> None:
    offset = send(clock_of_another_machine)
    before = time.perf_counter()
    there = clock_of_another_machine()[1] + offset
    after = time.perf_counter()
    assert offset == pytest.approx(-AHEAD, abs=10)
    # As exact as its fastest round trip.
    assert before - 0.5 < there < after + 0.5


def test_processes_of_one_machine_read_one_clock(send: Any) -> None:
    # An estimate would only add its error.
    assert send(Runtime("cpu", "127.0.0.1", 0).clock) == 0.0
