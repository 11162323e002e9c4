"""Ranks that cannot reach one another, from the start or from the middle of a training."""

import dataclasses
import functools
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.errors import RankFailedError
from deeppool.execution import ranks as ranks_module
from deeppool.processes.launcher import LocalLauncher, WorkerSpec
from deeppool.processes.managed_process import Inbox, ManagedProcess, ProcessHandle
from tests.execution.test_training_faults import Faulty
from tests.network_namespaces import LINK, ip
from tests.processes.children import children
from tests.runs.test_train import make_job, make_plan

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("in_the_checkout")]


class OnAnInterface(LocalLauncher):
    """Launcher on this machine, with gloo on a given network interface."""

    interface = "nowhere0"

    def worker_spec(self, rank: int) -> WorkerSpec:
        return dataclasses.replace(super().worker_spec(rank), interface=self.interface)


class InNamespaces(OnAnInterface):
    """Launcher of each rank in a network namespace, as on separate machines."""

    interface = LINK

    def __init__(self, namespaces: list[str]) -> None:
        super().__init__("cpu", len(namespaces))
        self.namespaces = namespaces

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ProcessHandle:
        return ManagedProcess(module, name, inbox, launcher=("ip", "netns", "exec", self.namespaces[rank]))


def cut_the_link() -> None:
    ip("link", "set", LINK, "down")


@pytest.mark.slow
def test_a_missing_network_interface_is_reported_before_training_starts() -> None:
    with pytest.raises(
        RankFailedError,
        match=r"rank \d could not reach the other ranks \(.*nowhere0.*\).* while it started; .*network.*no checkpoint",
    ):
        dp.train(make_plan(2), make_job(), steps=1, launcher=OnAnInterface("cpu", 2))
    assert children() == []


@pytest.mark.root
@pytest.mark.stress
def test_ranks_missing_from_the_rendezvous_are_named(
    network_namespaces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "RENDEZVOUS_SECONDS", 5.0)
    # In a network of its own, each has no way to the other.
    ip("-n", network_namespaces[1], "address", "flush", "dev", LINK)
    ip("-n", network_namespaces[1], "address", "add", "10.78.0.2/24", "dev", LINK)
    with pytest.raises(
        RankFailedError, match=r"rank \d could not reach the other ranks .* while it started; .*is the network"
    ):
        dp.train(make_plan(2), make_job(), steps=1, launcher=InNamespaces(network_namespaces))
    assert children() == []


@pytest.mark.root
@pytest.mark.stress
def test_a_link_cut_during_training_is_reported_with_the_waiting_ranks(
    network_namespaces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "MIN_TIMEOUT", 6.0)
    monkeypatch.setattr(ranks_module, "TIMEOUT_UPDATES", 3.0)
    data = functools.partial(Faulty, cut_the_link, tmp_path / "once")
    with pytest.raises(
        RankFailedError,
        match=r"no rank made progress for \d+ s while it trained, each waits for another: rank 0 in .* and rank 1 in "
        r".*; all ranks were stopped \(is the network between them up\?\); the last checkpoint is .*step-000002",
    ):
        dp.train(
            make_plan(2),
            make_job(dataset=data),
            steps=6,
            checkpoints=tmp_path / "kept",
            checkpoint_every=2,
            launcher=InNamespaces(network_namespaces),
        )
    assert children() == []
