"""Client of a cluster's coordinator: submits jobs, reads their status, cancels them."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deeppool.base.number_checks import whole_number
from deeppool.base.pickling import pickled
from deeppool.coordinator import ray_connection
from deeppool.coordinator.driver import Background, Foreground
from deeppool.coordinator.gpus import on_node
from deeppool.coordinator.head import Head
from deeppool.coordinator.history import ClusterStatus, JobRecord
from deeppool.coordinator.ray_connection import Joined
from deeppool.errors import DeeppoolError, InvalidValueError, RunError
from deeppool.graph.models.workloads import check_buildable, find_workload
from deeppool.job import Job
from deeppool.planning.plan import Plan
from deeppool.planning.renumber_gpus import renumber_gpus
from deeppool.profiling.table import Profile
from deeppool.runs.elastic_ranks import check_elastic

if TYPE_CHECKING:
    from deeppool.training.training_job import TrainingJob

NAMESPACE = "deeppool"
NAME = "coordinator"
BACKGROUND_BATCH = 4
ANSWER_SECONDS = 300.0
"""Time limit in seconds for an answer of the coordinator; a Ray that has ended is noticed long before."""
LOOK_SECONDS, LOST_LOOKS = 5.0, 3
"""Seconds between two looks whether Ray accepts connections, and how many in a row must fail: it may start again."""


class Coordinator:
    """A cluster's coordinator: runs jobs on its GPUs, one foreground and one background on each.

        with dp.Coordinator.start() as cluster:
            job = cluster.submit(plan, my_training_job, steps=500)
            cluster.submit_background("resnet18", gpus=2)
            print(cluster.status())
            print(cluster.wait(job))

    Jobs go on when the block is left, and when this process ends; :meth:`stop` ends them.
    """

    def __init__(self) -> None:
        """Finds the coordinator that was started last.

        Raises:
            RunError: there is none, or Ray is not installed.
        """
        joined = ray_connection.running()
        if joined is None:
            raise RunError("no cluster runs (deeppool cluster start)")
        self._joined = joined
        self._ray, self._connected = ray_connection.join(joined.address)
        try:
            self._head: Any = self._ray.get_actor(NAME, namespace=NAMESPACE)
        except ValueError:
            raise RunError(f"the Ray at {joined.address} has no coordinator (deeppool cluster start)") from None

    @classmethod
    def start(cls, address: str | None = None, *, gpus: int | None = None) -> "Coordinator":
        """Starts a coordinator, unless it runs, and a Ray for it.

        Args:
            address: ``HOST:PORT`` of a running Ray of which this machine is a node; by default a Ray on this machine
                alone.
            gpus: number of cores that a Ray on this machine offers as GPUs, where it has no real ones; all by default.

        Raises:
            RunError: Ray is not installed, does not start, or is not at the address, or another one runs that was
                started here.
            DocumentError: a record of the history is unreadable.
        """
        joined = ray_connection.running()
        if gpus is not None and (address or joined):
            at = address if joined is None else joined.address
            raise InvalidValueError(
                f"gpus={gpus} is for a new Ray on this machine, there is one at {at} (deeppool cluster stop ends it)"
            )
        if joined is not None and joined.pid is not None:
            if address not in (None, joined.address):
                raise RunError(
                    f"a Ray that runs on this machine at {joined.address} would not be found again "
                    "(deeppool cluster stop ends it, and its jobs)"
                )
        elif address is not None:
            joined = Joined(address, None)
        here = joined is None
        if joined is None:
            joined = ray_connection.start_here(gpus)
        ray, connected = ray_connection.join(joined.address)
        device = "cuda" if ray.cluster_resources().get("GPU") else "cpu"
        head = (
            ray.remote(Head)
            .options(
                name=NAME,
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                # The history is a folder of this machine.
                scheduling_strategy=on_node(ray.get_runtime_context().get_node_id()),
            )
            .remote(device)
        )
        try:
            _answer(ray, head.open.remote(str(ray_connection.state_folder() / "jobs")))
        except DeeppoolError:
            # Without its history it serves nobody, and does not stop.
            ray.kill(head)
            if connected:
                ray.shutdown()
            if here:
                ray_connection.leave(joined)
            raise
        ray_connection.remember(joined)
        found = cls()
        found._connected = connected
        return found

    def submit(
        self,
        plan: Plan,
        job: "TrainingJob | None" = None,
        *,
        steps: int,
        checkpoints: str | os.PathLike[str] | None = None,
        restarts: int = 0,
        min_ranks: int | None = None,
        profile: Profile | None = None,
    ) -> int:
        """Adds a foreground job to the queue; it gets as many GPUs as its plan's layers use.

        Args:
            plan: plan from the profile of ``job.capture()``, or of a model by its name.
            job: training of the user; without one the plan's model trains on the synthetic task, as in
                :func:`deeppool.launch`.
            steps: total number of updates at the end; without a job, number of iterations to measure.
            checkpoints: folder of the checkpoints, on a disk that all machines share; the training continues
                from the latest one in it.
            restarts: number of times to start the ranks again from the last checkpoint after one was lost.
            min_ranks: least number of ranks to go on with after a GPU was lost, as in :func:`deeppool.train`. The job
                gets a free GPU in place of a lost one as soon as there is one, before jobs that wait.
            profile: profile that the plan was made from; required by ``min_ranks``.

        Returns:
            The number of the job.

        Raises:
            InvalidValueError: the cluster is too small, a number is out of its bounds, or ``min_ranks`` is without
                what it needs.
        """
        steps, restarts = whole_number("steps", steps), whole_number("restarts", restarts, 0)
        if job is None and (checkpoints is not None or restarts or min_ranks is not None):
            raise InvalidValueError(
                f"checkpoints, restarts and min_ranks need a training job, got none, and {checkpoints}, {restarts} and "
                f"{min_ranks}"
            )
        if job is None:
            check_buildable(plan.model)
        plan = replace(renumber_gpus(plan), origin=None)
        if min_ranks is not None:
            min_ranks = check_elastic(plan, min_ranks, profile, checkpoints, restarts)
        work = Foreground(
            plan=plan,
            job=None if job is None else pickled(job, "the job"),
            steps=steps,
            checkpoints=None if checkpoints is None else str(Path(checkpoints).absolute()),
            folder=os.getcwd(),
            restarts=restarts,
            min_ranks=min_ranks,
            profile=None if profile is None else replace(profile, origin=None),
        )
        number: int = self._ask("submit", "foreground", plan.model, plan.gpus, steps, work)
        return number

    def submit_background(self, job: str | Job, *, gpus: int = 1, steps: int | None = None) -> int:
        """Adds a background job to the queue: independent trainings, one per GPU.

        Args:
            job: a model by name, or a :class:`deeppool.job.Job` with its own batch and input shape.
            gpus: number of GPUs; a foreground may run there too, and has precedence.
            steps: updates of each training; by default until it is cancelled.

        Returns:
            The number of the job.

        Raises:
            InvalidValueError: the cluster is too small, or a number is out of its bounds.
            CaptureError: there is no such model.
        """
        # Another number would fail in the coordinator, where jobs of all clients wait.
        gpus, steps = whole_number("gpus", gpus), None if steps is None else whole_number("steps", steps)
        wanted = job if isinstance(job, Job) else Job(job, (), BACKGROUND_BATCH)
        find_workload(wanted.model)
        work = Background(wanted, steps, os.getcwd())
        number: int = self._ask("submit", "background", wanted.model, gpus, steps, work)
        return number

    def status(self) -> ClusterStatus:
        """Returns the state of every GPU and every job."""
        found: ClusterStatus = self._ask("status")
        return found

    def wait(self, job: int, timeout: float | None = None) -> JobRecord:
        """Waits until a job is over, and returns its record.

        Raises:
            RunError: it is not over in ``timeout`` seconds.
        """
        try:
            found: JobRecord = self._answer(self._head.wait.remote(job), timeout)
        except self._ray.exceptions.GetTimeoutError:
            raise RunError(f"job {job} is not over after {timeout:.0f} s (wait longer, or cancel it)") from None
        return found

    def cancel(self, job: int) -> JobRecord:
        """Ends a running or waiting job; returns when its processes have ended."""
        found: JobRecord = self._ask("cancel", job)
        return found

    def stop(self) -> ClusterStatus:
        """Cancels every job and ends the coordinator, and also Ray where :meth:`start` started it.

        Returns:
            The last status; all jobs are over.
        """
        self._ask("close")
        last = self.status()
        self._ray.kill(self._head)
        self.disconnect()
        ray_connection.leave(self._joined)
        return last

    def disconnect(self) -> None:
        """Disconnects from the cluster, if this object connected to it; its jobs continue."""
        if self._connected:
            self._ray.shutdown()

    def _ask(self, method: str, *arguments: Any) -> Any:
        try:
            return self._answer(getattr(self._head, method).remote(*arguments), ANSWER_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            raise RunError(
                f"the coordinator has not answered for {ANSWER_SECONDS:.0f} s (is its machine overloaded? ask again)"
            ) from None

    def _answer(self, asked: Any, timeout: float | None) -> Any:
        """Returns the coordinator's answer, or raises its error.

        Ray ends a process a minute after its own end, without an exception: this is noticed before.
        """
        until, lost = math.inf if timeout is None else time.monotonic() + timeout, 0
        while True:
            # Ray aborts this process where the limit is negative.
            left = max(0.0, until - time.monotonic())
            try:
                return _answer(self._ray, asked, min(left, LOOK_SECONDS))
            except self._ray.exceptions.GetTimeoutError:
                if left <= LOOK_SECONDS:
                    raise
            lost = 0 if ray_connection.answers(self._joined.address) else lost + 1
            if lost == LOST_LOOKS:
                raise RunError(
                    f"Ray at {self._joined.address} has ended, and its jobs with it (deeppool cluster stop, then start)"
                )

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()


def _answer(ray: Any, asked: Any, timeout: float | None = None) -> Any:
    """Returns the coordinator's answer, or raises its error."""
    try:
        return ray.get(asked, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, DeeppoolError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError:
        raise RunError("the coordinator has ended, and its jobs with it (deeppool cluster start)") from None
