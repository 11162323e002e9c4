"""The folder of nights: those that are over, the one that is not, and how one becomes the other.

    nights/.lock            held while somebody writes
    nights/.unfinished/     the night under way, or interrupted
    nights/2026-11-21/      a night that is over: read-only, never touched again, in the end removed whole
    nights/2026-11-21-2/    the second of that day
    nights/.2026-10-01.removed/   on its way out

A night becomes visible by one rename, and leaves by one.
"""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from deeppool.base import serialization
from deeppool.errors import DeeppoolError, DocumentError
from deeppool.evaluation.nightly_record import NightlyRun

UNFINISHED = ".unfinished"
NIGHT = "night.json"
_NAME = re.compile(r"\d{4}-\d\d-\d\d(-\d+)?")


class Archive:
    """A folder of nights."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Makes the folder where it is missing.

        Raises:
            DocumentError: it cannot be made.
        """
        self.folder = Path(folder)
        self.unfinished = self.folder / UNFINISHED
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DocumentError(f"cannot write {folder}: {error.strerror} (choose another folder)") from error

    def nights(self) -> list[NightlyRun]:
        """The nights that are over, the oldest first; what is no night of ours, or unreadable, is passed over."""
        found = []
        for path in self.folder.iterdir():
            if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                try:
                    night = serialization.read(path / NIGHT, NightlyRun)
                except DeeppoolError:
                    continue
                # A copy under another name is somebody's, and not to be removed.
                if night.name == path.name and night.finished:
                    found.append(night)
        return sorted(found, key=lambda night: night.started)

    def resume(self) -> NightlyRun | None:
        """The night that was not finished; what cannot be read of it is none."""
        try:
            return serialization.read(self.unfinished / NIGHT, NightlyRun)
        except DeeppoolError:
            return None

    def keep(self, night: NightlyRun) -> None:
        """Writes down how far the unfinished night is.

        Raises:
            DocumentError: it cannot be written; the earlier state stays.
        """
        try:
            self.unfinished.mkdir(exist_ok=True)
        except OSError as error:
            raise DocumentError(f"cannot write {self.unfinished}: {error.strerror} (free some space)") from error
        serialization.write(night, self.unfinished / NIGHT)

    def clear(self) -> None:
        """Removes an unfinished night of which nothing is done."""
        shutil.rmtree(self.unfinished, ignore_errors=True)

    def discard(self, notebook: str) -> None:
        """Removes what an interrupted notebook left."""
        shutil.rmtree(self.unfinished / notebook, ignore_errors=True)

    def free_name(self, date: str) -> str:
        """A night's name: its date, with a number from the second of a day on."""
        name, number = date, 1
        while (self.folder / name).exists():
            number += 1
            name = f"{date}-{number}"
        return name

    def publish(self, night: NightlyRun) -> Path:
        """Makes the unfinished night, which is whole now, one that is over.

        Raises:
            DocumentError: it cannot be written; it stays unfinished.
        """
        self.keep(night)
        target = self.folder / night.name
        try:
            for path in self.unfinished.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    path.chmod(path.stat().st_mode & 0o555)
            self.unfinished.rename(target)
        except OSError as error:
            raise DocumentError(f"cannot write {target}: {error.strerror} (choose another folder)") from error
        return target

    def remove(self, nights: Sequence[NightlyRun]) -> None:
        """Removes nights, each whole: what is interrupted on the way is finished the next time."""
        for night in nights:
            (self.folder / night.name).rename(self.folder / f".{night.name}.removed")
        for path in self.folder.glob(".*.removed"):
            if _NAME.fullmatch(path.name[1:].removesuffix(".removed")) and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
