"""The coordinator's actor: keeps the queue, starts jobs by the placement, and writes the history.

Its state changes only on its one event loop. Runtimes and drivers are actors that belong to it: Ray
ends them with it, and the processes of every job end with them.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deeppool.coordinator.driver import Driver, Foreground, Work
from deeppool.coordinator.gpus import Core, Gpus, NodeLostError, on_node, within
from deeppool.coordinator.history import WAITING, ClusterStatus, GpuUse, History, JobProgress, JobRecord, now
from deeppool.coordinator.ray_connection import find_ray
from deeppool.coordinator.ray_launcher import RaySlot
from deeppool.device.kinds import find_kind
from deeppool.errors import DeeppoolError, InvalidValueError
from deeppool.scheduling.placement import Gpu, JobPlacement, Request, Role, place, refill
from deeppool.units import format_count

PROGRESS_SECONDS = 1.0
"""Time limit in seconds for a driver's progress report, which an import of the user's modules may delay."""
LOOK_SECONDS = 5.0
"""Seconds between two looks for GPUs of new nodes, and for room on the disk."""


@dataclass
class _Job:
    """Job that is not over."""

    record: JobRecord
    work: Work
    slots: list[RaySlot] = field(default_factory=list)
    driver: Any = None
    scratch: str | None = None
    """Folder for the driver's temporary files, or None."""
    attempt: "asyncio.Task[dict[str, Any]] | None" = None
    """Task that trains; it alone is cancelled, so that the cleanup after it always runs."""
    ending: "asyncio.Task[None] | None" = None
    """Task that waits for the attempt, and cleans up."""
    cancelled: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Head:
    """Coordinator as one actor of a Ray cluster."""

    def __init__(self, device: str) -> None:
        """Creates the coordinator without jobs; :meth:`open` is called first.

        Args:
            device: ``cpu`` where the cores of the cluster are its GPUs, ``cuda`` where it has GPUs.
        """
        self._ray = find_ray()
        self._device = device
        self._gpus = Gpus(device)
        self._history: History | None = None
        self._past: list[JobRecord] = []
        self._watch: asyncio.Task[None] | None = None
        self._jobs: dict[int, _Job] = {}
        """Jobs that are not over, in the order of submission."""

    # -- called by clients ------------------------------------------------------------------------------

    async def open(self, folder: str) -> None:
        """Reads the history, unless it was read before.

        Args:
            folder: folder of the history, on the machine of this actor.
        """
        if self._history is None:
            history = History(Path(folder))
            self._past = history.read()
            self._history = history
            self._watch = asyncio.create_task(self._look_again())

    async def submit(self, role: Role, model: str, gpu_count: int, steps: int | None, work: Work) -> int:
        """Adds a job to the queue; returns its number."""
        have = len(self._gpus.living())
        if gpu_count > have:
            fewer = f"plan with --gpus {have}" if role == "foreground" else f"at most --gpus {have}"
            raise InvalidValueError(
                f"the job needs {format_count(gpu_count, 'GPU')}, the cluster has {have} ({fewer}, or add a node)"
            )
        if isinstance(work, Foreground) and work.plan.device != self._device:
            raise InvalidValueError(
                f"the plan is for device {work.plan.device}, this cluster's is {self._device} (profile and plan there)"
            )
        if role == "background" and not find_kind(self._device).on_cores:
            raise InvalidValueError(
                "background jobs train on cores so far, this cluster has GPUs (start a cluster of cores for them, or "
                "give a training on one machine --background)"
            )
        number = 1 + max((*self._jobs, *(record.job for record in self._past)), default=0)
        self._jobs[number] = _Job(JobRecord(number, role, model, gpu_count, steps, now()), work)
        self._change(self._jobs[number])
        self._schedule()
        return number

    async def status(self) -> ClusterStatus:
        """Returns the state of every GPU and every job."""
        running = [job for job in self._jobs.values() if job.record.state == "running"]
        await asyncio.gather(*(self._update_progress(job) for job in running))
        # Jobs may have ended, and others begun, meanwhile.
        holders = {(held.role, gpu): held.job for held in self._placements() for gpu in held.gpus}
        gpus = tuple(
            GpuUse(number, core.machine, holders.get(("foreground", number)), holders.get(("background", number)))
            for number, core in self._gpus.living().items()
        )
        jobs = sorted((*self._past, *(job.record for job in self._jobs.values())), key=lambda record: record.job)
        address = self._ray.get_runtime_context().gcs_address
        assert self._history is not None
        return ClusterStatus(address, self._device, gpus, tuple(jobs), self._history.write_rest())

    async def wait(self, number: int) -> JobRecord:
        """Waits until a job is over, and returns its record."""
        job = self._jobs.get(number)
        if job is not None:
            await job.over.wait()
            return job.record
        past = next((record for record in self._past if record.job == number), None)
        if past is None:
            raise InvalidValueError(f"there is no job {number} (see: deeppool cluster status)")
        return past

    async def cancel(self, number: int) -> JobRecord:
        """Ends a job in any state; returns when its processes have ended."""
        job = self._jobs.get(number)
        if job is not None and job.record.state == "queued":
            self._end(job, state="cancelled")
            self._schedule()
        elif job is not None:
            assert job.attempt is not None
            job.cancelled = True
            job.attempt.cancel()
        return await self.wait(number)

    async def close(self) -> None:
        """Cancels every job; this actor may be ended afterwards."""
        # Waiting jobs first: none may start when another ends.
        jobs = sorted(self._jobs.values(), key=lambda job: job.record.state != "queued")
        await asyncio.gather(*(self.cancel(job.record.job) for job in jobs))
        self._gpus.close()

    # -- called by drivers ------------------------------------------------------------------------------

    async def reassign(self, number: int) -> list[RaySlot]:
        """Returns the slots of a running job without those on lost GPUs, and with free ones in place of them."""
        job = self._jobs[number]
        assert job.attempt is not None
        # A job that is cancelled meanwhile gets no others.
        while not job.attempt.done():
            cores = self._gpus.living()
            gpus = [Gpu(number, core.machine) for number, core in cores.items()]
            held = JobPlacement(number, job.record.role, job.record.gpus)
            placement = refill(held, job.record.gpu_count, self._placements(), gpus)
            self._hold(job, placement.gpus, cores)
            # A node that starts no runtime is lost, too.
            with contextlib.suppress(NodeLostError):
                job.slots = await self._gpus.slots(placement.gpus)
                break
        return job.slots

    # -- the queue --------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Starts every job that can start now."""
        cores = self._gpus.living()
        waiting = [job for job in self._jobs.values() if job.record.state == "queued"]
        for job in waiting:
            if job.record.gpu_count > len(cores):
                what = f"it needs {format_count(job.record.gpu_count, 'GPU')}, the cluster has {len(cores)} left"
                self._end(job, state="failed", error=f"{what} (add a node and submit it again)")
        starting = place(
            [Request(x.record.job, x.record.role, x.record.gpu_count) for x in waiting if not x.record.over],
            self._placements(),
            [Gpu(number, core.machine) for number, core in cores.items()],
        )
        for placement in starting:
            job = self._jobs[placement.job]
            self._hold(job, placement.gpus, cores, state="running", started=now(), progress=JobProgress())
            job.attempt = asyncio.create_task(self._train(job))
            job.ending = asyncio.create_task(self._run(job, job.attempt))

    async def _look_again(self) -> None:
        """Starts jobs that wait when the cluster gets GPUs, and writes records that no disk had room for."""
        assert self._history is not None
        known = set(self._gpus.living())
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._history.write_rest()
            living = self._gpus.living().keys()
            running = [job.record for job in self._jobs.values() if job.record.state == "running"]
            # A job that lost GPUs gets others before jobs that wait.
            if living - known and all(len(living & {*record.gpus}) == record.gpu_count for record in running):
                self._schedule()
                known |= living

    def _placements(self) -> list[JobPlacement]:
        """Returns the GPUs of all running jobs, lost ones included."""
        return [
            JobPlacement(job.record.job, job.record.role, job.record.gpus)
            for job in self._jobs.values()
            if job.record.state == "running"
        ]

    def _hold(self, job: _Job, gpus: tuple[int, ...], cores: dict[int, Core], **changes: Any) -> None:
        """Changes the GPUs of a job."""
        self._change(job, gpus=gpus, machines=tuple(cores[gpu].machine for gpu in gpus), **changes)

    async def _run(self, job: _Job, attempt: Awaitable[dict[str, Any]]) -> None:
        """Runs one job from its start until its processes have ended."""
        try:
            changes = await attempt
        except asyncio.CancelledError:
            changes = {"state": "cancelled"}
        except NodeLostError:
            changes = {"state": "queued", "gpus": (), "machines": (), "started": None, "progress": WAITING}
        except self._ray.exceptions.RayActorError:
            changes = {"state": "failed", "error": "the process that drove it was killed (submit it again)"}
        except Exception as error:  # the user's training may raise anything
            changes = {"state": "failed", "error": _in_one_line(getattr(error, "cause", None) or error)}
        await self._update_progress(job)
        if job.driver is not None:
            self._ray.kill(job.driver)
        await asyncio.gather(*(self._gpus.end(job.record.job, slot) for slot in job.slots))
        if job.scratch is not None:
            shutil.rmtree(job.scratch, ignore_errors=True)
        if changes["state"] != "queued":
            self._end(job, **changes)
        elif job.cancelled:
            self._end(job, state="cancelled")
        else:
            self._change(job, **changes)
        self._schedule()

    async def _train(self, job: _Job) -> dict[str, Any]:
        """Trains, and returns the changes of the job's record."""
        context = self._ray.get_runtime_context()
        here, this = on_node(context.get_node_id()), context.current_actor
        remote = self._ray.remote(Driver).options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
        # The driver starts concurrently with the runtimes.
        job.driver = remote.remote()
        job.slots = await self._gpus.slots(job.record.gpus)
        job.scratch = tempfile.mkdtemp(prefix="deeppool-")
        progress, result = await job.driver.run.remote(job.record.job, job.work, job.slots, job.scratch, this)
        changes = {"state": "done", "progress": progress}
        if result is not None:
            assert self._history is not None
            changes["result"] = self._history.write_result(job.record.job, result)
        return changes

    async def _update_progress(self, job: _Job) -> None:
        """Updates the progress of a job from its driver."""
        if job.driver is None:
            return
        progress = await within(PROGRESS_SECONDS, job.driver.progress.remote())
        if progress is not None and not job.record.over:
            job.record = replace(job.record, progress=progress)

    def _end(self, job: _Job, **changes: Any) -> None:
        self._change(job, ended=now(), **changes)
        del self._jobs[job.record.job]
        self._past.append(job.record)
        job.over.set()

    def _change(self, job: _Job, **changes: Any) -> None:
        job.record = replace(job.record, **changes)
        assert self._history is not None
        self._history.write(job.record)


def _in_one_line(error: BaseException) -> str:
    """Formats an error in one line; errors of deeppool are used unchanged."""
    text = " ".join(str(error).split())
    return text if isinstance(error, DeeppoolError) else f"{type(error).__name__}: {text}"
