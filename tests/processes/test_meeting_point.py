"""Where ranks of several machines meet: a port that is held from the start, on the interface that leads there."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch.distributed as dist

from deeppool.coordinator.runtime import Runtime
from deeppool.device.cpu import CpuDevice
from deeppool.execution import communicator
from deeppool.execution.communicator import join_process_group
from deeppool.processes.meeting_point import (
    LOOPBACK,
    interface_of,
    interface_towards,
    join_store,
    listen,
    open_store,
    store_url,
)

JOB = 7


def is_free(port: int) -> bool:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


def test_a_runtime_holds_the_port_of_a_job_until_the_job_ends() -> None:
    runtime = Runtime("cpu", LOOPBACK, 0)
    url = runtime.rendezvous(JOB)
    port = urlsplit(url).port
    assert port is not None
    assert not is_free(port), "between its choice and the ranks' first connection, too"
    with ThreadPoolExecutor() as ranks:
        first, second = ranks.map(lambda _: join_store(url, timedelta(seconds=30)), range(2))
    first.set("from", "first")
    assert second.get("from") == b"first"
    del first, second
    runtime.end(JOB)
    assert is_free(port)


def test_ranks_are_clients_of_the_store_and_gloo_uses_the_interface_that_leads_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    joined: dict[str, Any] = {}
    monkeypatch.setattr(communicator, "ProcessGroup", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **named: joined.update(named))
    store = open_store(listen(LOOPBACK), LOOPBACK)
    join_process_group(CpuDevice(), 0, 2, store_url(store), None)
    # Rank 0, too, which torch makes the server of an init_method tcp://.
    assert "init_method" not in joined
    joined["store"].set("key", "value")
    assert store.get("key") == b"value"
    assert os.environ.pop("GLOO_SOCKET_IFNAME") == "lo"


def test_the_users_own_interface_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    monkeypatch.setattr(communicator, "ProcessGroup", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **named: None)
    store = open_store(listen(LOOPBACK), LOOPBACK)
    join_process_group(CpuDevice(), 0, 2, store_url(store), None)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth9"


def test_the_interface_is_that_of_the_route_to_the_rendezvous() -> None:
    import psutil

    assert interface_towards("tcp://127.0.0.5:1") == "lo"
    for name, held in psutil.net_if_addrs().items():
        for address in held:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                # A machine reaches its own address from it.
                assert interface_towards(f"tcp://{address.address}:1") == name
    assert interface_towards("tcp://no-such-host.invalid:1") is None


def test_ranks_listen_on_the_interface_of_their_address() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.2") == "lo"
    assert interface_of("203.0.113.1") is None


def test_a_rendezvous_without_a_port_is_an_error() -> None:
    with pytest.raises(ValueError, match="tcp://host:port, got tcp://host"):
        join_store("tcp://host", timedelta(seconds=1))
