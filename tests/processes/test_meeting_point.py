"""Where ranks of several machines meet: a port that is held from the start, on the interface that leads there."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import torch

from deeppool.coordinator.runtime import Runtime
from deeppool.device.cpu import CpuDevice
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
from tests.conftest import CHECKOUT
from tests.network_namespaces import ADDRESSES
from tests.ranks import run_ranks

JOB = 7
TIMEOUT = 300


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


def join_and_sum(rank: int, url: str) -> None:
    for library in ("GLOO", "NCCL"):
        os.environ.pop(f"{library}_SOCKET_IFNAME", None)
    torch.set_num_threads(1)
    communicator = join_process_group(CpuDevice(), rank, 2, url, None)
    total = torch.tensor([rank + 1.0])
    communicator.all_reduce(total).wait()
    assert total.item() == 3.0
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    # NCCL takes a name for the start of names, but for this sign.
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
    communicator.close()


@pytest.mark.processes
def test_ranks_meet_at_a_port_that_another_process_holds() -> None:
    store = open_store(listen(LOOPBACK), LOOPBACK)
    # Rank 0 is a client, too: torch makes it the server of an init_method tcp://, and the port is not free.
    run_ranks(join_and_sum, (store_url(store),), 2)
    assert store.num_keys() > 0
    assert not is_free(store.port)


def join_by_no_interface(rank: int, url: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "nowhere0"
    with pytest.raises(RuntimeError, match="nowhere0"):
        join_process_group(CpuDevice(), rank, 1, url, None)


@pytest.mark.processes
def test_the_users_own_interface_is_kept() -> None:
    store = open_store(listen(LOOPBACK), LOOPBACK)
    run_ranks(join_by_no_interface, (store_url(store),), 1)


MEET = """
import sys
from datetime import timedelta
import torch
from deeppool.device.cpu import CpuDevice
from deeppool.execution.communicator import join_process_group
from deeppool.processes.meeting_point import listen, open_store, store_url

rank, address = int(sys.argv[1]), sys.argv[2]
if rank == 0:
    store = open_store(listen(address), address)
    print(store_url(store), flush=True)
    url = store_url(store)
else:
    url = sys.argv[3]
communicator = join_process_group(CpuDevice(), rank, 2, url, None)
total = torch.tensor([rank + 1.0])
communicator.all_reduce(total).wait()
communicator.barrier()
communicator.close()
print(total.item(), flush=True)
"""
"""A rank of two on two machines: the first holds the store."""


@contextmanager
def start_in(namespace: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    # A host name that means the loopback, as on many distributions.
    command = [
        "ip",
        "netns",
        "exec",
        namespace,
        "unshare",
        "--uts",
        "sh",
        "-c",
        'hostname localhost && exec "$@"',
        "sh",
    ]
    with subprocess.Popen(
        [*command, sys.executable, "-c", MEET, *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)}, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.root
@pytest.mark.processes
@pytest.mark.stress
def test_gloo_uses_the_interface_of_the_route_where_the_host_name_means_the_loopback(
    network_namespaces: list[str],
) -> None:
    first, second = network_namespaces
    with start_in(first, "0", ADDRESSES[0]) as here:
        assert here.stdout is not None
        url = here.stdout.readline().strip()
        with start_in(second, "1", ADDRESSES[1], url) as there:
            sums = [process.communicate(timeout=TIMEOUT)[0].split() for process in (here, there)]
    assert [here.returncode, there.returncode] == [0, 0]
    assert sums == [["3.0"], ["3.0"]]


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
