"""The coordinator's actor: keeps the queue, starts what the placement says, and writes the history.

Everything that it knows is changed on its one event loop. Runtimes and drivers are actors that belong to it: Ray
ends them with it, and with them end the processes of every job.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deeppool.coordinator.driver import Driver, Foreground, Work
from deeppool.coordinator.engine import find_ray
from deeppool.coordinator.history import WAITING, ClusterStatus, GpuUse, History, JobProgress, JobRecord, now
from deeppool.coordinator.ray_place import Seat
from deeppool.coordinator.runtime import Runtime
from deeppool.errors import DeeppoolError, InvalidValueError
from deeppool.scheduling.placement import Gpu, Placement, Request, Role, place

START_SECONDS = 60.0
"""A runtime that is not up by then has no machine that could hold it."""
END_SECONDS = 5.0
TELL_SECONDS = 1.0
"""A driver that imports a user's modules may be slow to say how far it is."""


@dataclass
class _Job:
    """A job that has not been read from the history only."""

    record: JobRecord
    work: Work
    seats: list[Seat] = field(default_factory=list)
    driver: Any = None
    task: "asyncio.Task[None] | None" = None
    attempt: "asyncio.Task[dict[str, Any]] | None" = None
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Core:
    """One GPU, or core, that Ray has."""

    number: int
    node: str
    """Ray's name of it; several nodes may be on one machine."""
    machine: str
    index: int
    """Among those of the machine."""


class _NodeLostError(Exception):
    """A node starts no runtime."""


class Head:
    """Runs as one actor of a Ray cluster."""

    def __init__(self, device: str) -> None:
        """Starts with nothing; :meth:`open` is called first.

        Args:
            device: ``cpu`` where the cores of the cluster are its GPUs, ``cuda`` where it has GPUs.
        """
        self._ray = find_ray()
        self._device = device
        self._history: History | None = None
        self._past: list[JobRecord] = []
        self._jobs: dict[int, _Job] = {}
        self._seen: dict[tuple[str, int], _Core] = {}
        """Every GPU that there ever was, by its node and its index there."""
        self._lost: set[str] = set()
        """Nodes that did not start a runtime; Ray never uses the name of a node again."""
        self._runtimes: dict[int, Any] = {}

    # -- what clients call ------------------------------------------------------------------------------

    async def open(self, folder: str) -> None:
        """Reads the history, unless that was done.

        Args:
            folder: of the history, on the machine of this actor.
        """
        if self._history is None:
            history = History(Path(folder))
            self._past = history.read()
            self._history = history

    async def submit(self, role: Role, model: str, gpu_count: int, steps: int | None, work: Work) -> int:
        """Takes a job into the queue; returns its number."""
        have = len(self._cores())
        if gpu_count > have:
            raise InvalidValueError(
                f"the job needs {gpu_count} GPUs, the cluster has {have} (plan with --gpus {have}, or add a node)"
            )
        if isinstance(work, Foreground) and work.plan.device != self._device:
            raise InvalidValueError(
                f"the plan is for device {work.plan.device}, this cluster's is {self._device} (profile and plan there)"
            )
        if role == "background" and self._device != "cpu":
            raise InvalidValueError("background jobs train on cores so far, this cluster's places are GPUs")
        number = 1 + max((*self._jobs, *(record.job for record in self._past)), default=0)
        self._jobs[number] = _Job(JobRecord(number, role, model, gpu_count, steps, now()), work)
        self._change(self._jobs[number])
        self._schedule()
        return number

    async def status(self) -> ClusterStatus:
        """What every GPU and every job does now."""
        running = [job for job in self._jobs.values() if job.record.state == "running"]
        await asyncio.gather(*(self._look(job) for job in running))
        holders = {(job.record.role, gpu): job.record.job for job in running for gpu in job.record.gpus}
        gpus = tuple(
            GpuUse(number, core.machine, holders.get(("foreground", number)), holders.get(("background", number)))
            for number, core in self._cores().items()
        )
        jobs = (*self._past, *(job.record for job in self._jobs.values()))
        return ClusterStatus(self._ray.get_runtime_context().gcs_address, self._device, gpus, jobs)

    async def wait(self, number: int) -> JobRecord:
        """Returns when a job is over."""
        past = next((record for record in self._past if record.job == number), None)
        if past is not None:
            return past
        if number not in self._jobs:
            raise InvalidValueError(f"there is no job {number} (see: deeppool cluster status)")
        await self._jobs[number].over.wait()
        return self._jobs[number].record

    async def cancel(self, number: int) -> JobRecord:
        """Ends a job in whatever state it is; returns when its processes are gone."""
        job = self._jobs.get(number)
        if job is not None and job.record.state == "queued":
            self._end(job, state="cancelled")
            self._schedule()
        elif job is not None and job.attempt is not None:
            job.attempt.cancel()
        return await self.wait(number)

    async def close(self) -> None:
        """Cancels every job; this actor may be ended then."""
        for job in sorted(self._jobs.values(), key=lambda job: job.record.state != "queued"):
            if not job.record.over:
                await self.cancel(job.record.job)
        for runtime in self._runtimes.values():
            self._ray.kill(runtime)

    # -- the queue --------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Starts what can start now."""
        cores = self._cores()
        waiting = [job for job in self._jobs.values() if job.record.state == "queued"]
        for job in waiting:
            if job.record.gpu_count > len(cores):
                what = f"it needs {job.record.gpu_count} GPUs, the cluster has {len(cores)} left"
                self._end(job, state="failed", error=f"{what} (add a node and submit it again)")
        starting = place(
            [Request(x.record.job, x.record.role, x.record.gpu_count) for x in waiting if not x.record.over],
            [
                Placement(x.record.job, x.record.role, x.record.gpus)
                for x in self._jobs.values()
                if x.record.state == "running"
            ],
            [Gpu(number, core.machine) for number, core in cores.items()],
        )
        for placement in starting:
            job = self._jobs[placement.job]
            machines = {number: core.machine for number, core in cores.items()}
            self._change(
                job,
                state="running",
                gpus=placement.gpus,
                machines=tuple(machines[gpu] for gpu in placement.gpus),
                started=now(),
                progress=JobProgress(),
            )
            job.task = asyncio.create_task(self._run(job))

    async def _run(self, job: _Job) -> None:
        """One job from its start to its end; its processes are gone then."""
        # Cancelling reaches the attempt alone: what follows it is always done.
        job.attempt = asyncio.create_task(self._train(job))
        try:
            changes = await job.attempt
        except asyncio.CancelledError:
            changes = {"state": "cancelled"}
        except _NodeLostError:
            changes = {"state": "queued", "gpus": (), "machines": (), "started": None, "progress": WAITING}
        except self._ray.exceptions.RayActorError:
            changes = {"state": "failed", "error": "the process that drove it was killed (submit it again)"}
        except Exception as error:  # the user's training may raise anything
            changes = {"state": "failed", "error": _in_one_line(getattr(error, "cause", None) or error)}
        await self._look(job)
        if job.driver is not None:
            self._ray.kill(job.driver)
        await asyncio.gather(*(self._end_processes(job.record.job, seat) for seat in job.seats))
        if changes["state"] == "queued":
            self._change(job, **changes)
        else:
            self._end(job, **changes)
        self._schedule()

    async def _train(self, job: _Job) -> dict[str, Any]:
        """What the record of a job gets that came to its end."""
        here = on_node(self._ray.get_runtime_context().get_node_id())
        remote = self._ray.remote(Driver).options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
        # It starts beside the runtimes.
        job.driver = remote.remote()
        job.seats = await self._seats(job.record.gpus)
        progress, result = await job.driver.run.remote(job.record.job, job.work, job.seats)
        changes = {"state": "done", "progress": progress}
        if result is not None:
            assert self._history is not None
            changes["result"] = self._history.write_result(job.record.job, result)
        return changes

    async def _look(self, job: _Job) -> None:
        """Asks a driver how far its job is."""
        if job.driver is None:
            return
        progress = await self._within(TELL_SECONDS, job.driver.progress.remote())
        if progress is not None and not job.record.over:
            job.record = replace(job.record, progress=progress)

    def _end(self, job: _Job, **changes: Any) -> None:
        self._change(job, ended=now(), **changes)
        job.over.set()

    def _change(self, job: _Job, **changes: Any) -> None:
        job.record = replace(job.record, **changes)
        assert self._history is not None
        self._history.write(job.record)

    # -- the cluster ------------------------------------------------------------------------------------

    def _cores(self) -> dict[int, _Core]:
        """By number, the GPUs of the nodes that live."""
        unit = "CPU" if self._device == "cpu" else "GPU"
        living = [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in self._lost]
        for node in sorted(living, key=lambda node: str(node["NodeManagerAddress"])):
            for index in range(int(node["Resources"].get(unit, 0))):
                if (node["NodeID"], index) not in self._seen:
                    machine = node["NodeManagerAddress"]
                    before = sum(core.machine == machine for core in self._seen.values())
                    core = _Core(len(self._seen), node["NodeID"], machine, before)
                    self._seen[node["NodeID"], index] = core
        names = {node["NodeID"] for node in living}
        return {core.number: core for core in self._seen.values() if core.node in names}

    async def _seats(self, gpus: tuple[int, ...]) -> list[Seat]:
        """The GPUs of a job, their runtimes started where there are none.

        Raises:
            _NodeLostError: a node starts none; its GPUs are the cluster's no more.
        """
        cores = {core.number: core for core in self._seen.values()}
        for _ in range(2):
            runtimes = [self._runtime(cores[gpu]) for gpu in gpus]
            up = await asyncio.gather(*(self._within(START_SECONDS, x.free_memory.remote()) for x in runtimes))
            silent = [gpu for gpu, answer in zip(gpus, up, strict=True) if answer is None]
            if not silent:
                return [Seat(gpu, cores[gpu].machine, x) for gpu, x in zip(gpus, runtimes, strict=True)]
            # One that was alone may have been killed since: a second one is tried.
            for gpu in silent:
                self._ray.kill(self._runtimes.pop(gpu))
        self._lost |= {cores[gpu].node for gpu in silent}
        raise _NodeLostError

    def _runtime(self, core: _Core) -> Any:
        if core.number not in self._runtimes:
            remote = self._ray.remote(Runtime).options(
                num_cpus=1 if self._device == "cpu" else 0,
                num_gpus=0 if self._device == "cpu" else 1,
                max_concurrency=Runtime.CALLS,
                scheduling_strategy=on_node(core.node),
            )
            self._runtimes[core.number] = remote.remote(self._device, core.machine, core.index)
        return self._runtimes[core.number]

    async def _end_processes(self, job: int, seat: Seat) -> None:
        if await self._within(END_SECONDS, seat.runtime.end.remote(job)) is None:
            # It is gone, or hangs. The next job gets a new one; another job on this GPU loses its process, and is told.
            self._ray.kill(seat.runtime)
            self._runtimes.pop(seat.gpu, None)

    async def _within(self, seconds: float, asked: Awaitable[Any]) -> Any:
        """An actor's answer; None from one that is late or gone."""
        try:
            return await asyncio.wait_for(asked, seconds)
        except (TimeoutError, self._ray.exceptions.RayError):
            return None


def on_node(node: str) -> Any:
    """Ray's word for an actor that can only be on one node."""
    find_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _in_one_line(error: BaseException) -> str:
    """Ours speak for themselves."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DeeppoolError) else f"{type(error).__name__}: {text}"
