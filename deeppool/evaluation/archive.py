"""The folder of nightly runs: finished runs, at most one unfinished run, and a lock.

    nights/.lock            held by the process that writes
    nights/.unfinished/     the run in progress, or an interrupted one
    nights/2026-11-21/      a finished run: read-only, never changed, removed as a whole
    nights/2026-11-21-2/    the second run of that day
    nights/.2026-10-01.removed/   a run whose removal has begun

A run becomes visible by one rename, and is removed by one.
"""

import os
import re
import shutil
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from deeppool.base import serialization
from deeppool.base.file_lock import file_lock
from deeppool.errors import DeeppoolError, DocumentError
from deeppool.evaluation.nightly_record import NightlyRun

LOCK = ".lock"
UNFINISHED = ".unfinished"
RECORD_FILE = "night.json"
KEEP = 30
"""Runs of each preset and machine that are kept by default; a regression report compares with the newest 14."""
_NAME = re.compile(r"\d{4}-\d\d-\d\d(-\d+)?")


class NightlyArchive:
    """A folder of nightly runs."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Creates the folder if it is missing.

        Raises:
            DocumentError: the folder cannot be created.
        """
        self.folder = Path(folder)
        self.unfinished = self.folder / UNFINISHED
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DocumentError(f"cannot write {folder}: {error.strerror} (choose another folder)") from error

    def locked(self) -> AbstractContextManager[None]:
        """Holds the folder's lock; the operating system releases it when the process ends.

        Raises:
            RunError: another process holds it.
            DocumentError: the folder cannot be written.
        """
        refusal = f"another nightly writes to {self.folder} (wait until it is over, or give another -o)"
        return file_lock(self.folder / LOCK, refusal)

    def runs(self) -> list[NightlyRun]:
        """Returns finished runs, the oldest first; other folders and unreadable runs are skipped."""
        found = []
        for path in self.folder.iterdir():
            if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                try:
                    run = serialization.read(path / RECORD_FILE, NightlyRun)
                except DeeppoolError:
                    continue
                # A copy under another name belongs to the user and must not be removed.
                if run.name == path.name and run.finished:
                    found.append(run)
        return sorted(found, key=lambda run: run.start)

    def load_unfinished(self) -> NightlyRun | None:
        """Returns the unfinished run; None if there is none, or if it cannot be read."""
        try:
            return serialization.read(self.unfinished / RECORD_FILE, NightlyRun)
        except DeeppoolError:
            return None

    def save_unfinished(self, run: NightlyRun) -> None:
        """Saves the state of the unfinished run.

        Raises:
            DocumentError: it cannot be written; the earlier state is kept.
        """
        try:
            self.unfinished.mkdir(exist_ok=True)
        except OSError as error:
            raise DocumentError(f"cannot write {self.unfinished}: {error.strerror} (free some space)") from error
        serialization.write(run, self.unfinished / RECORD_FILE)

    def discard_unfinished(self, notebook: str = "") -> None:
        """Removes the output of an interrupted notebook, or the whole unfinished run."""
        shutil.rmtree(self.unfinished / notebook, ignore_errors=True)

    def free_name(self, date: str) -> str:
        """Returns an unused run name: the date, with a number from the second run of a day on."""
        name, number = date, 1
        while (self.folder / name).exists():
            number += 1
            name = f"{date}-{number}"
        return name

    def publish(self, run: NightlyRun) -> Path:
        """Turns the unfinished run into a finished one.

        Raises:
            DocumentError: it cannot be written; it stays unfinished.
        """
        self.save_unfinished(run)
        target = self.folder / run.name
        try:
            for path in self.unfinished.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    path.chmod(path.stat().st_mode & 0o555)
            self.unfinished.rename(target)
        except OSError as error:
            raise DocumentError(f"cannot write {target}: {error.strerror} (choose another folder)") from error
        return target

    def remove_old(self, keep: int = KEEP) -> None:
        """Removes all but the newest runs of each preset and machine, and finishes removals that were interrupted."""
        newer: Counter[tuple[str, str]] = Counter()
        for run in reversed(self.runs()):
            newer[run.preset, run.device] += 1
            if newer[run.preset, run.device] > keep:
                (self.folder / run.name).rename(self.folder / f".{run.name}.removed")
        for path in self.folder.glob(".*.removed"):
            if _NAME.fullmatch(path.name[1:].removesuffix(".removed")) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
