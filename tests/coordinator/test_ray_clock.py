"""The times of ranks on other machines of a Ray cluster are on the launcher's clock."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from deeppool.coordinator import ray_launcher
from deeppool.coordinator.ray_launcher import RayLauncher, RaySlot
from deeppool.coordinator.runtime import Runtime
from deeppool.processes.clock_offset import clock_identity

AHEAD = 250.0
"""Seconds."""


class Node:
    """A runtime on a machine whose clock shows something else."""

    def __init__(self, identity: str, ahead: float) -> None:
        self.sent: list[dict[str, Any]] = []
        self.clock = self._method(lambda: (identity, time.perf_counter() + ahead))
        self.start = self._method(lambda *_: 0)
        self.messages = self._method(lambda key: [None])
        self.call = self._method(lambda key, method, *given, **named: self.sent.append(named))

    @staticmethod
    def _method(function: Any) -> Any:
        return SimpleNamespace(remote=function)


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Any:
    ray = SimpleNamespace(get=lambda found, timeout=None: found, exceptions=SimpleNamespace(RayError=ConnectionError))
    monkeypatch.setattr(ray_launcher, "find_ray", lambda: ray)

    def send_to(node: Node) -> float:
        launcher = RayLauncher(1, [RaySlot(0, "machine", node)], "/")
        launcher.start(0, "module", "rank 0").send("train", steps=1)
        (arguments,) = node.sent
        assert arguments["steps"] == 1
        return float(arguments["clock"])

    return send_to


def test_a_rank_gets_the_seconds_that_bring_its_machines_clock_to_the_launchers(send: Any) -> None:
    assert send(Node("another machine", AHEAD)) == pytest.approx(-AHEAD, abs=1.0)
    assert send(Node("another machine", -AHEAD)) == pytest.approx(AHEAD, abs=1.0)


def test_processes_of_one_machine_read_one_clock(send: Any) -> None:
    identity, _ = Runtime("cpu", "127.0.0.1", 0).clock()
    assert identity == clock_identity()
    # An estimate would only add its error.
    assert send(Node(identity, 0.0)) == 0.0
