"""Measures ways of training on the same live ranks, by turns."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppool.errors import InvalidValueError
from deeppool.execution.ranks import RUNTIME_BYTES, start_ranks, wait_until_joined
from deeppool.job import Progress
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.managed_process import Message
from deeppool.processes.rank_group import RankGroup, private_folder, report_start
from deeppool.training.training_job import TrainingJob

TIMEOUT = 600.0
"""Seconds without progress of any rank after which one counts as hung."""

OnMessage = Callable[[Message], None]


def check_ways(what: str, chosen: Sequence[str], known: Sequence[str], job: TrainingJob) -> None:
    """Raises an InvalidValueError unless the ways, named ``what``, are known and different, and can train the job."""
    if unknown := [name for name in chosen if name not in known]:
        raise InvalidValueError(f"{what} are some of {', '.join(map(repr, known))}, got '{unknown[0]}'")
    if not chosen or len(set(chosen)) < len(chosen):
        raise InvalidValueError(f"{what} must be one or more different ones, got {list(chosen)}")
    if job.accumulation > 1 or job.clip_norm is not None:
        raise InvalidValueError(
            "jobs that accumulate or clip gradients cannot be compared (give dataclasses.replace(job, accumulation=1, "
            "clip_norm=None))"
        )


@dataclass(frozen=True, slots=True)
class MeasuredRounds:
    """MeasuredRounds of one way, one after the other."""

    answers: list[Message]
    """Of each rank."""

    @property
    def seconds(self) -> list[float]:
        """Seconds of each round, on its slowest rank."""
        return [max(times) for times in zip(*(answer["seconds"] for answer in self.answers), strict=True)]


class Turns:
    """Ways of training on ranks that have joined each other."""

    def __init__(
        self, group: RankGroup, device_name: str, report: Progress | None = None, timeout: float = TIMEOUT
    ) -> None:
        """Measures nothing yet.

        Args:
            group: ranks that execute the commands of :class:`deeppool.execution.comparison.ways.Ways`.
            device_name: name of the device of each.
            report: see :data:`deeppool.job.Progress`.
            timeout: seconds without progress after which a rank counts as hung.
        """
        self.device_name = device_name
        self.report: Progress = report or (lambda what, share: None)
        self.rounds: dict[str, list[MeasuredRounds]] = {}
        """Measured rounds of each way, as many as there are repetitions."""
        self._group, self._timeout = group, timeout

    def ask(self, command: str, on_message: OnMessage | None = None, **arguments: Any) -> list[Message]:
        """Sends a command to all ranks, and returns their answers.

        Raises:
            RankFailedError: a rank failed.
            RunCancelledError: this thread's run was cancelled.
        """
        self._group.send(command, **arguments)
        return self._group.collect("done", self._timeout, "while ways to train were compared", on_message)

    def prepare(self, way: str, **arguments: Any) -> list[Message]:
        """Makes a way on all ranks, in place of an earlier one of the same name."""
        return self.ask("prepare", way=way, **arguments)

    def train(self, way: str, rounds: int, on_message: OnMessage | None = None, **arguments: Any) -> MeasuredRounds:
        """Trains some rounds by a way, without counting them."""
        return MeasuredRounds(self.ask("train", on_message, way=way, rounds=rounds, **arguments))

    def fastest(self, way: str, settings: Sequence[dict[str, Any]], rounds: int = 5) -> dict[str, Any]:
        """Makes a way with each of some arguments, and returns those with which its fastest round is the shortest."""
        if len(settings) == 1:
            return settings[0]
        times = []
        for arguments in settings:
            self.prepare(way, **arguments)
            times.append(min(self.train(way, rounds).seconds))
        return settings[times.index(min(times))]

    def repeat(
        self,
        ways: Sequence[str],
        rounds: int,
        repetitions: int,
        *,
        begin: float = 0.0,
        arguments: Callable[[str, int], dict[str, Any]] = lambda way, repetition: {},
        on_message: Callable[[str, int, Message], None] = lambda way, repetition, message: None,
    ) -> Iterator[int]:
        """Trains by all ways, one after the other, again and again; yields the number of each repetition at its end.

        Args:
            ways: ways that are made.
            rounds: of each way in a repetition.
            repetitions: times that all ways are measured.
            begin: completed fraction at the start, for the progress.
            arguments: returns fields of the command, by way and repetition.
            on_message: called with way, repetition, and each message of a rank meanwhile.
        """
        step = (1.0 - begin) / (repetitions * len(ways))
        for repetition in range(repetitions):
            for position, way in enumerate(ways):
                what, done = f"training by {way}", begin + step * (repetition * len(ways) + position)
                self.report(what, done)

                def follow(
                    message: Message, way: str = way, repetition: int = repetition, what: str = what, done: float = done
                ) -> None:
                    on_message(way, repetition, message)
                    self.report(what, done + step * message.get("share", 0.0))

                found = self.train(way, rounds, follow, **arguments(way, repetition))
                self.rounds.setdefault(way, []).append(found)
            yield repetition

    def seconds(self, way: str) -> tuple[float, ...]:
        """Returns the seconds of each measured round of a way; as many from each repetition."""
        return tuple(seconds for each in self.rounds[way] for seconds in each.seconds)


@contextmanager
def joined_ranks(
    program: str,
    ranks: int,
    *,
    save: Callable[[Path], object],
    device: str = "cpu",
    launcher: Launcher | None = None,
    report: Progress | None = None,
    timeout: float = TIMEOUT,
    **setup: Any,
) -> Iterator[Turns]:
    """Starts ranks that take turns; all of their processes end with the block, whatever happened.

    Args:
        program: module that each process runs.
        ranks: number of ranks.
        save: writes what the ranks need into the private folder of the run.
        device: kind of device.
        launcher: starts the processes. Default: on this machine.
        report: see :data:`deeppool.job.Progress`.
        timeout: see :class:`Turns`.
        setup: fields of the command ``setup``.
    """
    launcher = launcher or LocalLauncher(device, ranks)
    with private_folder() as folder, RankGroup(launcher) as group:
        launcher.check("the job", RUNTIME_BYTES)
        save(folder)
        launcher.distribute_files(folder)
        start_ranks(group, launcher, program, ranks, device=device, **setup)
        answers = wait_until_joined(group, None if report is None else report_start(report))
        yield Turns(group, answers[0]["device_name"], report, timeout)
