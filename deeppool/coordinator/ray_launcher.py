"""Launcher of a job's processes on the GPUs of a Ray cluster."""

import queue
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deeppool.coordinator.ray_connection import find_ray
from deeppool.errors import RankFailedError, RunError
from deeppool.processes.clock_offset import ClockOffset, clock_identity
from deeppool.processes.launcher import WorkerSpec
from deeppool.processes.managed_process import Inbox, ProcessHandle
from deeppool.units import format_bytes

ROUND_TRIPS = 4
"""Round trips per command, by which the offset between two machines' clocks is known."""
ANSWER_SECONDS = 30.0
"""Time limit in seconds for an answer of a runtime; after it, the process is lost. Ray reports a dead runtime."""
START_SECONDS = 240.0
"""The same, for what precedes a process: files are sent, and the first one of a runtime imports torch."""


@dataclass(frozen=True, slots=True)
class RaySlot:
    """GPU assigned to a job."""

    gpu: int
    """Number of the GPU in the cluster."""
    machine: str
    """Address of its machine."""
    runtime: Any
    """Handle of its :class:`deeppool.coordinator.runtime.Runtime`."""

    def __str__(self) -> str:
        return f"GPU {self.gpu} of {self.machine}"


class RayLauncher:
    """Launcher of one job's processes, each rank on its GPU of the cluster."""

    same_files = False
    """Whether ranks and launcher share files: the driver, which launches, may be on another machine."""

    def __init__(
        self, job: int, slots: Sequence[RaySlot], folder: str, reassign: Callable[[], Sequence[RaySlot]]
    ) -> None:
        """Creates the launcher without starting a process.

        Args:
            job: number of the job, which identifies its processes.
            slots: GPU of each rank.
            folder: folder on every machine from which the user's code is imported.
            reassign: has the coordinator take the job off lost GPUs and give it free ones; returns the slots it has.
        """
        self._job, self._folder, self._reassign = job, folder, reassign
        self._known = {slot.gpu: slot for slot in slots}
        self._ray = find_ray()
        self._gone = self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError
        self._specs: list[WorkerSpec] = []
        self._offsets: dict[str, ClockOffset] = {}
        """By how much the clock of each machine is ahead of this one's."""
        self.assign([slot.gpu for slot in slots])

    def available(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        """Returns the GPUs that the coordinator has for the job now: of living nodes, those that were free included."""
        slots = self._reassign()
        self._known |= {slot.gpu: slot for slot in slots}
        return tuple(slot.gpu for slot in slots)

    def assign(self, gpus: Sequence[int]) -> None:
        """Assigns the GPU of each rank."""
        self.gpus = tuple(gpus)
        self._slots = [self._known[gpu] for gpu in gpus]
        self._one_machine = len({slot.machine for slot in self._slots}) == 1
        self.cores = len(self._slots)

    def check(self, model: str, needed: int) -> None:
        """Raises RunError if a machine has too little memory for the ranks on it."""
        machines = defaultdict(list)
        free = self._answers([slot.runtime.free_memory.remote() for slot in self._slots])
        for slot, memory in zip(self._slots, free, strict=True):
            machines[slot.machine].append(memory)
        for machine, slots in machines.items():
            memory = slots[0]
            if len(slots) * needed > memory:
                raise RunError(
                    f"{model} needs {len(slots)} ranks on {machine}, about {format_bytes(len(slots) * needed)} of "
                    f"memory; {format_bytes(memory)} are available there (wait for other jobs, or plan with fewer GPUs)"
                )

    def distribute_files(self, folder: Path) -> None:
        """Sends the files to every slot, and chooses the rendezvous: a file on one machine, a port on several."""
        files = self._ray.put({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
        prepared = self._answers([slot.runtime.prepare.remote(self._job, files) for slot in self._slots])
        if self._one_machine:
            # A file cannot be reached from outside; torch's store would listen on every interface.
            shared = {"rendezvous": prepared[0].rendezvous, "interface": "lo"}
        else:
            shared = {"rendezvous": self._answers([self._slots[0].runtime.rendezvous.remote(self._job)])[0]}
        self._specs = [replace(spec, **shared) for spec in prepared]
        held = {
            (slot.machine, slot.gpu if spec.core is None else spec.core)
            for slot, spec in zip(self._slots, prepared, strict=True)
        }
        self.cores = len(held)

    def worker_spec(self, rank: int) -> WorkerSpec:
        """Returns the resources of a rank, as its runtime prepared them."""
        return self._specs[rank]

    def start(self, rank: int, module: str, name: str, inbox: Inbox | None = None) -> ProcessHandle:
        """Starts a process through the rank's runtime."""
        slot = self._slots[rank]
        offset = self._offsets.setdefault(slot.machine, ClockOffset())
        try:
            return RayProcess(self._job, slot, module, name, self._folder, inbox, offset=offset)
        except self._gone:
            raise self._lost(rank) from None

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
        """Returns the answers of the runtimes of the first ranks.

        Raises:
            RankFailedError: one of them is gone, or late.
        """
        answers = []
        for rank, answer in enumerate(asked):
            try:
                answers.append(self._ray.get(answer, timeout=START_SECONDS))
            except self._gone:
                raise self._lost(rank) from None
        return answers

    def _lost(self, rank: int) -> RankFailedError:
        error = RankFailedError(
            f"rank {rank} on {self._slots[rank]} cannot start: its machine does not answer (submit it again)"
        )
        error.rank = rank
        return error


class RayProcess:
    """Handle of a process that a runtime started on its machine."""

    def __init__(
        self,
        job: int,
        slot: RaySlot,
        module: str,
        name: str,
        folder: str,
        inbox: Inbox | None = None,
        *,
        offset: ClockOffset,
    ) -> None:
        """Starts the process, and a thread that receives its answers.

        Args:
            job: number of the job.
            slot: GPU beside which it runs.
            module: module that it runs.
            name: name in messages.
            folder: folder from which the user's code is imported.
            inbox: where its answers go; None: an inbox of its own.
            offset: offset of its machine's clock; each command adds a round trip to it.
        """
        self._ray = find_ray()
        self.name = f"{name} on {slot}"
        self.inbox: Inbox = inbox if inbox is not None else queue.SimpleQueue()
        self._slot, self._offset = slot, offset
        self._lost = False
        started = slot.runtime.start.remote(job, module, name, folder)
        try:
            self._key = self._ray.get(started, timeout=START_SECONDS)
        except self._ray.exceptions.GetTimeoutError:
            # The job goes on without it: a process that starts later ends as soon as Ray has its key.
            slot.runtime.call.remote(started, "kill")
            raise
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                for message in self._ray.get(self._slot.runtime.messages.remote(self._key)):
                    if self._lost:
                        return
                    self.inbox.put((self, message))
                    if message is None:
                        return
        except self._ray.exceptions.RayError:
            self._lose()

    def _lose(self) -> None:
        """Reports the end of the process, of which nobody can know more."""
        if not self._lost:
            self._lost = True
            self.inbox.put((self, None))

    def _ask(self, method: str, *arguments: Any, timeout: float = ANSWER_SECONDS, **named: Any) -> Any:
        """Calls a method of the process at its runtime; returns None if the runtime is gone, or late."""
        return self._call(self._slot.runtime.call.remote, self._key, method, *arguments, timeout=timeout, **named)

    def _call(self, remote: Callable[..., Any], *arguments: Any, timeout: float, **named: Any) -> Any:
        """Calls a method of the runtime; returns None if the runtime is gone, or late."""
        if self._lost:
            return None
        try:
            return self._ray.get(remote(*arguments, **named), timeout=timeout)
        except self._ray.exceptions.RayActorError:
            self._lose()
        except self._ray.exceptions.GetTimeoutError:
            # The rest of the run ends without it: so does the process, if its runtime goes on one day.
            self._slot.runtime.call.remote(self._key, "kill")
            self._lose()
        return None

    def send(self, command: str, **arguments: Any) -> None:
        """Sends a command and waits for its delivery: calls to an actor of several threads may overtake one another.

        The process gets the seconds to add to its machine's clock, as from a host server of torchrun.
        """
        for _ in range(ROUND_TRIPS):
            sent = time.perf_counter()
            answer = self._call(self._slot.runtime.clock.remote, timeout=ANSWER_SECONDS)
            received = time.perf_counter()
            if answer is None or answer[0] == clock_identity():
                break
            self._offset.add(sent, answer[1], received)
        self._ask("send", command, **arguments, clock=-self._offset.seconds)

    def exit_code(self) -> int | None:
        """Returns the exit code, or None while it runs; a process whose runtime is gone counts as killed."""
        code: int | None = self._ask("exit_code")
        return -signal.SIGKILL if self._lost else code

    def cpu_seconds(self) -> float | None:
        """Returns the CPU seconds of the process, measured on its machine."""
        seconds: float | None = self._ask("cpu_seconds")
        return seconds

    def exit_reason(self) -> str:
        """Returns how the process ended, with its last line of output, or that its machine does not answer."""
        reason: str | None = self._ask("exit_reason")
        return "was lost: its machine does not answer" if reason is None else reason

    def kill(self) -> None:
        """Kills the process; it has ended already if its runtime has."""
        self._ask("kill")

    def close(self, grace: float = 2.0) -> None:
        """Requests the exit of the process, and kills it after ``grace`` seconds."""
        self._ask("close", grace, timeout=grace + ANSWER_SECONDS)
