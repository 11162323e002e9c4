"""Numbers of the cluster's GPUs, and the cores of their machines."""

from types import SimpleNamespace
from typing import Any

import pytest

from deeppool.coordinator import gpus
from deeppool.coordinator.gpus import Core, Gpus


def node(name: str, machine: str, cores: int) -> dict[str, Any]:
    return {"Alive": True, "NodeID": name, "NodeManagerAddress": machine, "Resources": {"CPU": cores}}


def test_a_node_in_place_of_a_lost_one_has_its_cores_and_not_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, lost, elsewhere = node("kept", "m", 2), node("lost", "m", 2), node("elsewhere", "n", 1)
    nodes = [kept, lost, elsewhere]
    monkeypatch.setattr(gpus, "find_ray", lambda: SimpleNamespace(nodes=lambda: nodes))
    cluster = Gpus("cpu")
    before = cluster.living()
    assert [core.index for core in before.values()] == [0, 1, 2, 3, 0]
    nodes[1] = node("new", "m", 2)
    living = cluster.living()
    # Numbers are not used again, cores are.
    assert living == {n: before[n] for n in (0, 1, 4)} | {5: Core(5, "new", "m", 2), 6: Core(6, "new", "m", 3)}
