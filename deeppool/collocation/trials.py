"""Hyper-parameter trials as background jobs: one training in several configurations, the best one kept."""

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, get_args

from deeppool.base import serialization
from deeppool.base.arguments import check_fields
from deeppool.base.file_lock import file_lock
from deeppool.collocation.job_queue import BATCH, BackgroundJob
from deeppool.errors import DeeppoolError, DocumentError, InvalidValueError
from deeppool.records.training_record import BackgroundOutcome
from deeppool.records.trials_record import Configuration, TrialResult, TrialsRecord, Value, format_configuration
from deeppool.training.training_job import TrainingJob

RECORD = "trials.json"
FINISHED = "finished"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trials:
    """Trials of hyper-parameters in the gaps of a training; each free rank takes the next one.

        trials = dp.Trials(make_job, [{"lr": 0.1}, {"lr": 0.01}], steps=200, folder="trials")
        record = dp.train(plan, job, steps=1000, background=trials)
        print(record.trials.best)

    Each trial trains from the start for the same number of steps. In the folder lie the record of all trials, and the
    weights of the best one and of those that have not finished: the same call goes on with these, also with more
    configurations.
    """

    job: Callable[..., TrainingJob]
    """Function that makes the training of a configuration, given as keywords: ``make_job(lr=0.1)``."""
    configurations: Sequence[Mapping[str, Annotated[Value, "its message says how to give other objects"]]]
    """Hyper-parameters of each trial: numbers, texts, booleans or None."""
    _: KW_ONLY
    steps: int
    """Updates of each trial."""
    folder: str | os.PathLike[str]
    """Folder of the results and checkpoints."""
    batch: int = BATCH
    """Samples per step."""
    checkpoint_every: int = 100
    """Steps between two checkpoints of a trial."""
    memory: float | str | None = None
    """Memory budget of a trial, see :class:`deeppool.BackgroundJob`."""
    restarts: int = 1
    """Restarts of a trial, from its checkpoint, after it crashed or hung."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.configurations:
            raise InvalidValueError('trials need at least one configuration, for example [{"lr": 0.1}, {"lr": 0.01}]')
        seen = set()
        for number, configuration in enumerate(self.configurations):
            for name, value in configuration.items():
                if not isinstance(value, get_args(Value)):
                    raise InvalidValueError(
                        f"configuration {number} has {name}={value!r}: a hyper-parameter is a finite number, a text, a "
                        "boolean or None (make other objects of it in the function that makes the job)"
                    )
                if isinstance(value, int | float) and not serialization.may_hold(value):
                    raise InvalidValueError(
                        f"configuration {number} has {name}={value!r}: a number must be finite and within ±1e+30, an "
                        "integer within ±(2**63 - 1), as their record holds no others (give its logarithm, or a text)"
                    )
            if (key := key_of(configuration)) in seen:
                raise InvalidValueError(f"two trials have the configuration {dict(configuration)}")
            seen.add(key)


def key_of(configuration: Mapping[str, Value]) -> str:
    """Returns a short name of a configuration, whatever the order of its parameters."""
    return hashlib.sha256(json.dumps(dict(configuration), sort_keys=True).encode()).hexdigest()[:10]


class TrialRun:
    """The trials of one training: makes their jobs and records each one when it ends."""

    def __init__(self, trials: Trials, folder: Path, before: Sequence[TrialResult]) -> None:
        """Starts from the results in the folder.

        Args:
            trials: the trials.
            folder: of the results.
            before: results of earlier calls.
        """
        self._trials, self._folder = trials, folder
        self._results = {
            key: TrialResult(dict(configuration), 0, None, "waiting", None)
            for configuration in trials.configurations
            if (key := key_of(configuration))
        }
        for result in before:
            key = key_of(result.configuration)
            # What was finished stays comparable, although this call may not ask for it.
            if key in self._results or result.final_loss is not None:
                self._results[key] = result
        # Jobs end in the supervisor's thread.
        self._lock = threading.Lock()

    def jobs(self) -> list[BackgroundJob]:
        """Returns the jobs of the trials that have not finished, in order.

        Raises:
            InvalidValueError: a configuration makes no training.
        """
        return [
            self._job(dict(configuration))
            for configuration in self._trials.configurations
            if self._results[key_of(configuration)].final_loss is None
        ]

    def record(self) -> TrialsRecord:
        """Returns the results so far, those of earlier calls included."""
        with self._lock:
            return TrialsRecord(self._trials.steps, self._trials.batch, tuple(self._results.values()))

    def _job(self, configuration: Configuration) -> BackgroundJob:
        trials, label = self._trials, f"trial {format_configuration(configuration)}"
        try:
            job = trials.job(**configuration)
        except Exception as error:  # the user's function may raise anything
            raise InvalidValueError(f"cannot make the job of {label}: {type(error).__name__}: {error}") from error
        if not isinstance(job, TrainingJob):
            raise InvalidValueError(
                f"the job of {label} is a {type(job).__name__}, expected a deeppool.TrainingJob (return one)"
            )
        return BackgroundJob(
            job,
            batch=trials.batch,
            steps=trials.steps,
            checkpoints=self._folder_of(configuration),
            checkpoint_every=trials.checkpoint_every,
            memory=trials.memory,
            restarts=trials.restarts,
            label=label,
            on_end=partial(self._on_end, configuration),
        )

    def _folder_of(self, configuration: Mapping[str, Value]) -> Path:
        return self._folder / f"trial-{key_of(configuration)}"

    def _on_end(self, configuration: Configuration, outcome: BackgroundOutcome) -> str:
        """Records a trial whose job has ended, and returns what to report; it never raises."""
        finished = outcome.ended == FINISHED and outcome.final_loss is not None
        ended = outcome.ended
        if ended == FINISHED and not finished:
            # An earlier call ended between its last checkpoint and its record.
            ended = "its loss is not known, it is trained again by the next call"
            shutil.rmtree(self._folder_of(configuration), ignore_errors=True)
        loss = outcome.final_loss if finished else None
        checkpoint = outcome.checkpoint if ended == outcome.ended else None
        with self._lock:
            self._results[key_of(configuration)] = TrialResult(configuration, outcome.steps, loss, ended, checkpoint)
        try:
            return self._keep_best() if finished else ended
        except (DeeppoolError, OSError) as error:
            return f"{ended}, but its result was not saved: {error}"

    def save(self) -> None:
        """Writes the record.

        Raises:
            DocumentError: the folder cannot be written.
        """
        serialization.write(self.record(), self._folder / RECORD)

    def _keep_best(self) -> str:
        """Saves the results, deletes the weights of all finished trials but the best, and returns how it stands."""
        record = self.record()
        best = record.best
        if best is None:
            return FINISHED
        # First the record: a trial without weights and without a result would be lost.
        self.save()
        for result in record.results:
            if result.final_loss is not None and result is not best:
                self._results[key_of(result.configuration)] = replace(result, checkpoint=None)
                shutil.rmtree(self._folder_of(result.configuration), ignore_errors=True)
        self.save()
        done = sum(result.final_loss is not None for result in record.results)
        standing = f"best so far {format_configuration(best.configuration)} with loss {best.final_loss:.4f}"
        return f"finished, {done} of {len(record.results)} trials; {standing}"


@contextmanager
def trial_run(trials: Trials) -> Iterator[TrialRun]:
    """Makes the folder of trials, or continues those in it, and holds its lock during the block.

    Raises:
        InvalidValueError: the folder has trials of other steps or samples.
        RunError: another training runs trials there.
        DocumentError: the folder cannot be written, or its record is damaged.
    """
    folder = Path(trials.folder)
    with suppress(OSError):  # told by the lock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with file_lock(folder / ".lock", f"another training runs its trials in {folder} (wait, or choose another folder)"):
        before: Sequence[TrialResult] = ()
        if (folder / RECORD).exists():
            found = serialization.read(folder / RECORD, TrialsRecord)
            if (found.steps, found.batch) != (trials.steps, trials.batch):
                raise InvalidValueError(
                    f"{folder} has trials of {found.steps} steps of batch {found.batch}, these have {trials.steps} "
                    f"of batch {trials.batch}, and their losses do not compare (choose another folder)"
                )
            before = found.results
        run = TrialRun(trials, folder, before)
        run.save()
        try:
            yield run
        finally:
            try:
                run.save()
            except DocumentError as error:
                # The record of the training, which may have ended well, has the results, too.
                _LOG.warning("the results of the trials were not saved: %s", error)
