"""CrossoverScheduler: trains several jobs on the same ranks, each while the gradients of the others are in flight."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from deeppool.base.arguments import typed
from deeppool.base.number_checks import whole_number
from deeppool.base.run_registry import registered
from deeppool.collectives.patterns import LIBRARY
from deeppool.device.environment import made_now
from deeppool.device.find import find_device
from deeppool.device.kinds import DeviceName, check_common_clock, check_precision
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError, RunCancelledError
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.interleaving.crossover import measurements
from deeppool.interleaving.crossover.named_jobs import check_batch, job_name, named_jobs
from deeppool.interleaving.crossover.ranks import CrossoverRanks
from deeppool.interleaving.crossover.record import CrossoverJob, CrossoverRecord, CrossoverSpan
from deeppool.interleaving.crossover.round_time import JobCosts, crossover_round_time
from deeppool.job import Progress
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import private_folder
from deeppool.training.training_job import TrainingJob
from deeppool.units import format_count

COMMAND_SECONDS = 1.0
"""Rounds that the ranks take by themselves last about as long: a job joins or leaves no later."""

FIRST_ROUNDS = 4
"""Rounds of a command before their time is known; one is measured from its first turn to that of the next."""

OnRound = Callable[[Mapping[str, int]], None]
"""Callback with the steps that each job has computed."""


@dataclass(slots=True)
class _Member:
    """A job that trains now."""

    batch: int
    folder: CheckpointFolder
    memory: int
    steps: int = 0
    """Steps that it has computed."""
    goal: int = 0
    """Steps at which its training ends."""
    saved: int = 0
    """Steps of its last checkpoint."""
    resumed_from: str | None = None
    alone: JobCosts | None = None
    losses: list[float] = field(default_factory=list)
    compute_times: list[float] = field(default_factory=list)
    transfer_times: list[float] = field(default_factory=list)

    def forget(self) -> None:
        """Begins a new record."""
        self.losses, self.compute_times, self.transfer_times = [], [], []


class CrossoverScheduler:
    """Trains jobs on the same ranks by turns, each as if it were alone.

    One job computes at a time, on all ranks, while the fused gradients of the others are summed::

        with dp.CrossoverScheduler([first, second], global_batch=32, ranks=2) as crossover:
            print(crossover.measure())
            print(crossover.train(steps=100))

    Every job is synchronous SGD, to the last bit the same whatever trains beside it. Leaving the block ends the ranks.
    """

    @typed
    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        *,
        global_batch: int | Sequence[int],
        ranks: int = 2,
        device: DeviceName = "cpu",
        precision: Precision = "fp32",
        all_reduce: str = LIBRARY,
        checkpoints: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        keep: int = 2,
        launcher: Launcher | None = None,
    ) -> None:
        """Checks the settings; the ranks start when the ``with`` block is entered.

        Args:
            jobs: jobs, in the order of their turns.
            global_batch: samples of an update over all ranks: of every job, or of each.
            ranks: processes that every job trains on, each with a GPU or a core.
            device: ``cpu``, ``cuda`` or ``emulated``.
            precision: precision of products and convolutions.
            all_reduce: what sums gradients: ``library`` (gloo or NCCL), ``parameter-server``,
                ``sharded-parameter-server``, ``ring``, ``halving-doubling`` or ``recursive-doubling``.
            checkpoints: folder with a folder for each job, from whose latest checkpoint it resumes. None: none.
            checkpoint_every: updates of a job between two checkpoints; one more is written after its last update.
            keep: number of checkpoints to keep of each job.
            launcher: starts the processes. Default: on this machine.

        Raises:
            InvalidValueError: a setting out of range.
            DeviceUnavailableError: there is no such device.
        """
        checkpoint_every, keep = whole_number("checkpoint_every", checkpoint_every), whole_number("keep", keep)
        ranks = whole_number("ranks", ranks)
        self._first = named_jobs(jobs, global_batch, ranks, all_reduce)
        self.ranks, self.all_reduce = ranks, all_reduce
        self.device = find_device(device).kind
        check_common_clock(self.device)
        check_precision(precision)
        self._precision, self._launcher = precision, launcher
        self._checkpoints = None if checkpoints is None else Path(checkpoints)
        self._every, self._keep = checkpoint_every, keep
        self._names = set(self._first)
        """Names of all jobs, those that left included."""
        self._staying = dict.fromkeys(self._first)
        """Names of the jobs that train after the next round boundary."""
        self._members: dict[str, _Member] = {}
        self._ended: list[CrossoverJob] = []
        self._stack = ExitStack()
        self._running: CrossoverRanks | None = None
        self._device_name = ""
        self._waiting: list[Callable[[], None]] = []
        """Changes that wait for the next round boundary."""
        self._training = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the jobs that train now, in the order of turns; before that, of those that will."""
        return tuple(self._first if self._running is None and not self._members else self._members)

    def __enter__(self) -> "CrossoverScheduler":
        with ExitStack() as stack:
            folder = stack.enter_context(private_folder())
            running = stack.enter_context(
                CrossoverRanks(
                    self._first,
                    self.ranks,
                    folder,
                    self._launcher or LocalLauncher(self.device, self.ranks),
                    device=self.device,
                    precision=self._precision,
                    all_reduce=self.all_reduce,
                )
            )
            self._device_name, answers = running.wait_until_ready()
            self._running = running
            self._stack = stack.pop_all()
        try:
            for answer, (_, batch) in zip(answers, self._first.values(), strict=True):
                self._enrol(answer, batch)
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running = None
        self._stack.__exit__(kind, error, traceback)

    @registered
    def train(
        self, steps: int | Sequence[int], *, on_round: OnRound | None = None, on_progress: Progress | None = None
    ) -> CrossoverRecord:
        """Trains until every job has made a number of updates, and returns what was measured.

        Args:
            steps: updates at the end, those before a checkpoint included: of every job, or of each.
            on_round: called about every second, at a round boundary; :meth:`add` and :meth:`remove` then take effect
                at once.
            on_progress: see :data:`deeppool.job.Progress`.

        Raises:
            InvalidValueError: a number of steps below that already made, or no jobs.
            RankFailedError: a rank died, hung or ran out of memory; every process has ended by then.
            RunCancelledError: the training was cancelled, and the ranks have ended.
            DocumentError: a checkpoint cannot be written.
        """
        self._set_goals(steps)
        rounds, shown = list[float](), tuple[CrossoverSpan, ...]()
        self._training, self._ended = True, []
        for member in self._members.values():
            member.forget()
        per_command = FIRST_ROUNDS
        try:
            with self._ended_where_cancelled():
                while any(member.steps < member.goal for member in self._members.values()):
                    answers, durations = self._take_rounds(per_command)
                    rounds += durations
                    shown = measurements.spans(answers) if durations or not shown else shown
                    if durations:
                        per_command = max(FIRST_ROUNDS, int(COMMAND_SECONDS / max(durations)))
                    if on_progress is not None:
                        on_progress(f"training {', '.join(self._members)}", self._share())
                    if on_round is not None:
                        on_round({name: member.steps for name, member in self._members.items()})
                    if self._make_changes():
                        # Those of other jobs take another time.
                        rounds = []
                for name in self._members:
                    self._save(name)
        finally:
            self._training = False
        return self._record(rounds, shown)

    @registered
    def measure(self, steps: int = 4, *, on_progress: Progress | None = None) -> tuple[JobCosts, ...]:
        """Trains every job for some updates alone, one job after the other, and returns what a step of each costs.

        The updates count towards the steps of :meth:`train`: their order changes no bit.

        Args:
            steps: updates of each job; the first two warm up.
            on_progress: see :data:`deeppool.job.Progress`.

        Raises:
            InvalidValueError: fewer than three.
        """
        steps = whole_number("steps", steps, 3, note="the first two warm up")
        found: list[JobCosts] = []
        with self._ended_where_cancelled():
            for name, member in self._members.items():
                if on_progress is not None:
                    on_progress(f"measuring {name}", len(found) / len(self._members))
                answers = self._ranks().train({name: steps}, drains=True)
                member.steps += steps
                compute = measurements.median_after_warm_up(measurements.compute_times(answers)[name])
                communication = measurements.median_after_warm_up(measurements.transfer_times(answers)[name])
                source = (
                    f"alone on {format_count(self.ranks, 'rank')} of {self._device_name}, median of {steps - 2} steps"
                )
                assert compute is not None
                assert communication is not None
                member.alone = JobCosts(name, compute, communication, member.memory, source)
                found.append(member.alone)
        return tuple(found)

    def add(self, job: TrainingJob, *, global_batch: int, steps: int | None = None) -> str:
        """Lets a job join at the next round boundary, after the others in turn; returns its name.

        Args:
            job: the job.
            global_batch: samples of an update over all ranks.
            steps: updates at its end; None: as many as the job with the most, or as the next :meth:`train` says.

        Raises:
            InvalidValueError: the batch is smaller than the number of ranks, or these are not running.
        """
        self._ranks()
        global_batch = check_batch(global_batch, self.ranks)
        steps = None if steps is None else whole_number("steps", steps)
        name = job_name(job, self._names)
        self._names.add(name)

        def join() -> None:
            self._enrol(self._ranks().add(name, job, global_batch), global_batch)
            most = max(member.goal for member in self._members.values())
            self._members[name].goal = (most if steps is None else steps) if self._training else 0

        self._at_boundary(join)
        self._staying[name] = None
        return name

    def remove(self, name: str) -> None:
        """Lets a job leave at the next round boundary, after a last update and a checkpoint, if there is a folder.

        Raises:
            InvalidValueError: there is no such job, it was removed before, or the ranks are not running.
        """
        self._ranks()
        if name not in self._staying:
            fact = f"job '{name}' was removed before" if name in self._names else f"there is no job '{name}'"
            raise InvalidValueError(f"{fact} (jobs: {', '.join(self._staying) or 'none'})")
        del self._staying[name]

        def leave() -> None:
            self._save(name)
            self._ranks().remove(name)
            self._ended.append(replace(self._job(name), left=True))
            self._members.pop(name)

        self._at_boundary(leave)

    def _at_boundary(self, change: Callable[[], None]) -> None:
        self._waiting.append(change)
        if not self._training:
            self._make_changes()

    def _make_changes(self) -> bool:
        """Lets jobs join and leave; whether any did."""
        changed = bool(self._waiting)
        while self._waiting:
            self._waiting.pop(0)()
        return changed

    def _ranks(self) -> CrossoverRanks:
        if self._running is None:
            raise InvalidValueError("the ranks are not running (use the scheduler in a with block)")
        return self._running

    @contextmanager
    def _ended_where_cancelled(self) -> Iterator[None]:
        """Ends the ranks where the block is cancelled or interrupted, as they may be in the middle of a step."""
        try:
            yield
        except (RunCancelledError, KeyboardInterrupt) as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def _set_goals(self, steps: int | Sequence[int]) -> None:
        self._ranks()
        if not self._members:
            raise InvalidValueError("all jobs have left, so that there is nothing to train (add one)")
        goals = list(steps) if isinstance(steps, Iterable) else [steps] * len(self._members)
        if len(goals) != len(self._members):
            raise InvalidValueError(f"{len(self._members)} jobs have {len(goals)} numbers of steps (one for each)")
        for (name, member), goal in zip(self._members.items(), goals, strict=True):
            made = f"it has made {member.steps}"
            member.goal = whole_number(f"steps of '{name}'", goal, max(1, member.steps), note=made)

    def _share(self) -> float:
        """Returns the fraction of all jobs' steps that are made."""
        made = sum(min(member.steps, member.goal) for member in self._members.values())
        return made / sum(member.goal for member in self._members.values())

    def _take_rounds(self, most: int) -> tuple[list[Message], list[float]]:
        """Has the ranks take rounds until a checkpoint is due, or ``most``; returns their answers and full rounds."""
        due = {name: member.folder.next_due(member.steps, member.goal) for name, member in self._members.items()}
        left = {name: due[name] - member.steps for name, member in self._members.items() if member.goal > member.steps}
        rounds = min(most, *left.values())
        last = all(member.goal - member.steps <= rounds for member in self._members.values())
        # Those that are done are named too: the last step of a job is settled in its turn.
        steps = {name: min(rounds, left.get(name, 0)) for name in self._members}
        answers = self._ranks().train(steps, drains=last)
        self._note(answers)
        for name, count in steps.items():
            self._members[name].steps += count
            if count and self._members[name].steps == due[name]:
                self._save(name)
        return answers, measurements.round_times(answers, len(self._members))

    def _note(self, answers: list[Message]) -> None:
        for name, values in measurements.losses(answers).items():
            self._members[name].losses += values
        for name, values in measurements.compute_times(answers).items():
            self._members[name].compute_times += values
        for name, values in measurements.transfer_times(answers).items():
            self._members[name].transfer_times += values

    def _enrol(self, answer: Mapping[str, Any], batch: int) -> None:
        """Makes a job that the ranks have made a member, and resumes it."""
        name = answer["name"]
        folder = CheckpointFolder(
            path=None if self._checkpoints is None else self._checkpoints / name,
            every=self._every,
            keep=self._keep,
            model=name,
            graph_fingerprint=answer["graph_fingerprint"],
            global_batch=batch,
        )
        self._stack.enter_context(folder.locked())
        member = self._members[name] = _Member(batch, folder, answer["memory"])
        found = folder.find_resumable()
        if found is not None:
            path, member.steps = found
            member.saved = member.steps
            self._ranks().load(name, path, member.steps)
            member.resumed_from = str(path)

    def _save(self, name: str) -> None:
        """Writes a checkpoint of a job, if there is a folder and it has made a step since the last one."""
        member = self._members[name]
        if member.folder.path is not None and member.saved < member.steps:
            member.folder.save(lambda folder: self._ranks().save(name, folder), member.steps)
            member.saved = member.steps

    def _job(self, name: str) -> CrossoverJob:
        member = self._members[name]
        compute = measurements.median_after_warm_up(member.compute_times)
        communication = measurements.median_after_warm_up(member.transfer_times)
        costs = None
        if compute is not None and communication is not None:
            costs = JobCosts(name, compute, communication, member.memory, "measured beside the other jobs")
        latest = member.folder.latest()
        return CrossoverJob(
            name=name,
            global_batch=member.batch,
            updates=member.steps,
            losses=tuple(member.losses),
            costs=costs,
            resumed_from=member.resumed_from,
            checkpoint=None if latest is None else str(latest),
        )

    def _record(self, rounds: list[float], shown: tuple[CrossoverSpan, ...]) -> CrossoverRecord:
        alone = [member.alone for member in self._members.values() if member.alone is not None]
        return CrossoverRecord(
            jobs=(*self._ended, *map(self._job, self._members)),
            ranks=self.ranks,
            device=self.device,
            device_name=self._device_name,
            all_reduce=self.all_reduce,
            round_times=tuple(rounds),
            spans=shown,
            planned=crossover_round_time(alone) if len(alone) == len(self._members) and alone else None,
            **made_now(),
        )
