"""The GPUs that Ray has, their numbers in the cluster, and the runtimes on them."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from deeppool.coordinator.ray_connection import find_ray
from deeppool.coordinator.ray_launcher import RaySlot
from deeppool.coordinator.runtime import Runtime
from deeppool.device.kinds import find_kind

START_SECONDS = 240.0
"""Time limit in seconds for the start of a runtime; after it, its node counts as lost."""
END_SECONDS = 60.0
"""Time limit in seconds for the end of a job's processes on a GPU; after it, its runtime is ended with all of them."""


@dataclass(frozen=True, slots=True)
class Core:
    """GPU, or core, that Ray reports."""

    number: int
    node: str
    """Ray's id of the node; several nodes may be on one machine."""
    machine: str
    index: int
    """Index among the cores of the machine; of its living nodes no two have the same."""


class NodeLostError(Exception):
    """Raised when a node starts no runtime."""


class Gpus:
    """GPUs of the cluster with their runtimes; used only in the coordinator's event loop."""

    def __init__(self, device: str) -> None:
        """Creates the object; runtimes start when they are first needed.

        Args:
            device: ``cpu`` where the cores of the cluster are its GPUs, ``cuda`` where it has GPUs.
        """
        self._ray = find_ray()
        self._device = device
        self._seen: dict[tuple[str, int], Core] = {}
        """All GPUs since the start, by node and index."""
        self._lost: set[str] = set()
        """Nodes that did not start a runtime; Ray never reuses the id of a node."""
        self._runtimes: dict[int, Any] = {}

    def living(self) -> dict[int, Core]:
        """Returns the GPUs of the living nodes by number, those of new nodes included."""
        unit = find_kind(self._device).unit
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self._lost]
        names = {node["NodeID"] for node in nodes}
        for node in sorted(nodes, key=lambda node: str(node["NodeManagerAddress"])):
            for index in range(int(node["Resources"].get(unit, 0))):
                if (node["NodeID"], index) not in self._seen:
                    machine = node["NodeManagerAddress"]
                    # The cores of a node that is gone are free again.
                    held = {x.index for x in self._seen.values() if x.machine == machine and x.node in names}
                    free = min({*range(len(held) + 1)} - held)
                    core = Core(len(self._seen), node["NodeID"], machine, free)
                    self._seen[node["NodeID"], index] = core
        return {core.number: core for core in self._seen.values() if core.node in names}

    async def slots(self, numbers: tuple[int, ...]) -> list[RaySlot]:
        """Returns slots on some GPUs, and starts missing runtimes.

        Raises:
            NodeLostError: a node starts none; its GPUs are removed from the cluster.
        """
        cores = {core.number: core for core in self._seen.values()}
        for _ in range(2):
            slots = [RaySlot(number, cores[number].machine, self._runtime(cores[number])) for number in numbers]
            up = await asyncio.gather(*(within(START_SECONDS, slot.runtime.free_memory.remote()) for slot in slots))
            silent = [slot for slot, answer in zip(slots, up, strict=True) if answer is None]
            if not silent:
                return slots
            # An idle runtime may have been killed since: a second one is tried.
            for slot in silent:
                self._give_up(slot)
        self._lost |= {cores[slot.gpu].node for slot in silent}
        raise NodeLostError

    async def end(self, job: int, slot: RaySlot) -> None:
        """Ends the processes of a job on one of its GPUs."""
        if await within(END_SECONDS, slot.runtime.end.remote(job)) is None:
            # The runtime is gone, or hangs: all its processes end with it, those of another job too, which gets an
            # error.
            self._give_up(slot)

    def close(self) -> None:
        """Ends every runtime."""
        for runtime in self._runtimes.values():
            self._ray.kill(runtime)

    def _runtime(self, core: Core) -> Any:
        if core.number not in self._runtimes:
            remote = self._ray.remote(Runtime).options(
                num_cpus=int(not find_kind(self._device).on_gpus),
                num_gpus=int(find_kind(self._device).on_gpus),
                max_concurrency=Runtime.CALLS,
                scheduling_strategy=on_node(core.node),
            )
            self._runtimes[core.number] = remote.remote(self._device, core.machine, core.index)
        return self._runtimes[core.number]

    def _give_up(self, slot: RaySlot) -> None:
        """Drops a runtime, so that the next job gets a new one, unless one was started already."""
        self._ray.kill(slot.runtime)
        if self._runtimes.get(slot.gpu) is slot.runtime:
            del self._runtimes[slot.gpu]


def on_node(node: str) -> Any:
    """Returns Ray's scheduling strategy for an actor that can only be on one node."""
    find_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


async def within(seconds: float, asked: Awaitable[Any]) -> Any:
    """Waits for an actor's answer; returns None if it is late or the actor is gone."""
    try:
        return await asyncio.wait_for(asked, seconds)
    except (TimeoutError, find_ray().exceptions.RayError):
        return None
