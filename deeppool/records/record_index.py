"""Index of a folder: its records by kind, model and age, from the first and last bytes of each file.

Records of runs hold timelines and may be megabytes, so the index reads no file as a whole.
"""

import datetime
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from deeppool.errors import DocumentError
from deeppool.records.files import KINDS

HEAD, TAIL = 4096, 64
"""Bytes read from the start and the end: the format and the model are at the start; a complete file ends with a
brace."""
_FORMAT = re.compile(r'\{\s*"format"\s*:\s*"deeppool/([\w-]+)"')
_MODEL = re.compile(r'"model"\s*:\s*("(?:[^"\\\n]|\\.)*")')


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of one file in a folder."""

    path: Path
    saved: datetime.datetime
    """Modification time, local."""
    size: int
    """Size in bytes."""
    kind: str | None
    """Key of :data:`deeppool.records.files.KINDS`, or None if the file is not a record of deeppool."""
    model: str | None
    """Model of the record, if it is at the start of the file, or None."""
    problem: str | None
    """Reason why the file cannot be a record of this version, or None."""

    def __str__(self) -> str:
        what = self.problem if self.problem is not None else " of ".join(filter(None, [self.kind, self.model]))
        return f"{self.saved:%Y-%m-%d %H:%M:%S}  {self.path.name}: {what}"


def record_index(folder: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """Lists the JSON files of a folder, newest first, without those that vanish meanwhile.

    Raises:
        DocumentError: there is no such folder, or it is not readable.
    """
    place = Path(folder)
    try:
        paths = [path for path in place.iterdir() if path.suffix == ".json" and not path.name.startswith(".")]
    except OSError as error:
        raise DocumentError(f"cannot list {place}: {error.strerror} (give a folder with records)") from error
    entries = [entry for path in paths if (entry := _entry(path)) is not None]
    return tuple(sorted(entries, key=lambda entry: (entry.saved, entry.path.name), reverse=True))


def _entry(path: Path) -> Entry | None:
    from pydantic_core import from_json

    try:
        status = path.stat()
        saved = datetime.datetime.fromtimestamp(status.st_mtime)
        if not stat.S_ISREG(status.st_mode):  # a folder; or a FIFO, whose reader would wait
            return None
        head, tail = _ends(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Entry(path, saved, status.st_size, None, None, f"cannot be read: {error.strerror}")
    found = _FORMAT.match(head.lstrip())
    kind = found[1] if found else None
    model = _MODEL.search(head) if kind else None
    name = problem = None
    if kind is None:
        problem = "not a file of deeppool"
    elif kind not in KINDS:
        problem = f"of kind '{kind}', which this deeppool does not support"
    elif not tail.rstrip().endswith("}"):
        problem = "cut off before its end"
    try:
        name = from_json(model[1]) if model else None
    except ValueError:  # a tab, an escape that JSON does not have, half a character
        problem = "not JSON where it names its model"
    return Entry(path, saved, status.st_size, kind, name, problem)


def _ends(path: Path) -> tuple[str, str]:
    """Returns the first and last bytes of a file as text."""
    with path.open("rb") as stream:
        head = stream.read(HEAD)
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL))
        return head.decode("utf-8", "replace"), stream.read().decode("utf-8", "replace")
