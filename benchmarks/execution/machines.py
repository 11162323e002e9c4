"""Machines within one: network namespaces behind a switch of limited rate, each with its share of the cores.

Needs root, ``ip`` and ``tc``, and the cpu controller of cgroups. Everything is taken down again on leaving.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deeppool.processes.launcher import LocalLauncher, WorkerSpec
from deeppool.processes.managed_process import ManagedProcess

PREFIX = "deeppool-"
BRIDGE = "deeppool0"
INTERFACE = "eth0"
SUBNET = "10.87.41"
BURST_SECONDS = 1e-3
"""Of the rate: shorter ones do not hold it, 32 KB at 1 Gbit/s let 0.63 through."""
PERIOD_US = 10_000
"""Of a machine's quota. Of shorter ones a machine cannot use all: of 0.4 cores in 2.5 ms it gets 0.34."""
CGROUPS = Path("/sys/fs/cgroup")


class Machines(LocalLauncher):
    """A place with a machine per rank."""

    def __init__(self, count: int) -> None:
        super().__init__("cpu", count)

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Ranks meet in a file, as the machines share the disk, and talk over the network; no rank has its own core."""
        return replace(super().worker_spec(rank), interface=INTERFACE, core=None)

    def start(self, rank, module, name, inbox=None):
        """In the namespace and the cgroup of a machine."""
        return ManagedProcess(module, name, inbox, launcher=launcher(rank))


def launcher(machine: int) -> tuple[str, ...]:
    """Runs a command on a machine."""
    # The cgroup first: a namespace has a /sys of its own, without cgroups.
    join = f'echo $$ > {_cgroup(machine)}/cgroup.procs && exec "$@"'
    # A quota alone would let a machine compute on two cores at once, and pause for as long afterwards.
    available = sorted(os.sched_getaffinity(0))
    core = available[machine % len(available)]
    return ("sh", "-c", join, "sh", "taskset", "-c", str(core), "ip", "netns", "exec", f"{PREFIX}{machine}")


@contextlib.contextmanager
def machines(count: int, bits_per_second: float, cores: float) -> Iterator[Machines]:
    """Sets up machines whose links have a rate in either direction, and which have so many cores' time each."""
    with contextlib.ExitStack() as stack:
        # By itself it would end this process where it is, and leave the machines.
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)))
        _run(f"ip link add {BRIDGE} type bridge")
        stack.callback(_run, f"ip link del {BRIDGE}")
        _run(f"ip link set {BRIDGE} up")
        for machine in range(count):
            name, port = f"{PREFIX}{machine}", f"deeppool-p{machine}"
            _run(f"ip netns add {name}")
            stack.callback(_run, f"ip netns del {name}")
            _run(f"ip link add {port} type veth peer name {INTERFACE} netns {name}")
            # A namespace's own links end some time after it, and the next machines want their names.
            stack.callback(_run, f"ip link del {port}")
            _run(f"ip link set {port} master {BRIDGE} up")
            inside = f"ip -n {name}"
            _run(f"{inside} addr add {SUBNET}.{machine + 1}/24 dev {INTERFACE}")
            for device in (INTERFACE, "lo"):
                _run(f"{inside} link set {device} up")
            shape = (
                f"root tbf rate {bits_per_second:.0f}bit burst {bits_per_second * BURST_SECONDS / 8:.0f} latency 50ms"
            )
            _run(f"tc qdisc add dev {port} {shape}")
            _run(f"tc -n {name} qdisc add dev {INTERFACE} {shape}")
            stack.enter_context(_share(machine, cores))
        yield Machines(count)


@contextlib.contextmanager
def _share(machine: int, cores: float) -> Iterator[None]:
    """A cgroup that gets so many cores' time, in slices so short that nobody waits long."""
    group = _cgroup(machine)
    # Machines that were killed leave theirs, empty.
    group.mkdir(exist_ok=True)
    try:
        quota = int(cores * PERIOD_US)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield
    finally:
        group.rmdir()


def _cgroup(machine: int) -> Path:
    """Version 2 has one tree, version 1 one for each controller."""
    root = CGROUPS if (CGROUPS / "cgroup.controllers").exists() else CGROUPS / "cpu"
    return root / f"{PREFIX}{machine}"


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
