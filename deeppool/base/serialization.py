"""Records as files: versioned JSON, written whole or not at all, validated when read.

A file is one JSON object, ``{"format": "deeppool/<kind>", "version": 1, …fields}``. A record is a
frozen dataclass with ``KIND`` set; pydantic validates its fields by their annotations.
"""

import dataclasses
import functools
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from deeppool.base import number_checks
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.units import format_bytes

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

VERSION = 1
MAXIMUM_BYTES = 256 * 2**20
"""Maximum size of a file: several hours of telemetry of a node, or a plan of thousands of layers on a thousand GPUs."""
LARGEST: Mapping[type, float] = {int: number_checks.LARGEST, float: 1e30}
"""Maximum magnitude of a number in a file, by its type. Products of some floats stay finite, and integers fit
numpy's."""


def may_hold(number: float) -> bool:
    """Whether a file may hold a number: it is finite, and within :data:`LARGEST`."""
    return abs(number) <= LARGEST[float if isinstance(number, float) else int]


@runtime_checkable
class Record(Protocol):
    """A dataclass that can be a file."""

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=Record)


def to_json(record: Record) -> dict[str, Any]:
    """Returns the record as a JSON object, format and version first; ``origin`` exists in memory only."""
    held: dict[str, Any] = {x.name: {"origin"} for x in dataclasses.fields(record) if _holds_record(record, x.name)}
    fields = adapter(type(record)).dump_python(
        # NumPy's numbers and arrays, of which pydantic knows nothing, are those of Python in a file.
        record,
        mode="json",
        exclude={"origin": True, **held},
        fallback=plain,
        warnings="none",
    )
    return {"format": f"deeppool/{record.KIND}", "version": VERSION, **fields}


def plain(value: Any) -> Any:
    """Returns a number, text or array of NumPy as Python's: ``default`` of :func:`json.dumps`.

    Raises:
        TypeError: it is none of NumPy's.
    """
    import numpy as np

    if not isinstance(value, np.generic | np.ndarray):
        raise TypeError(f"a record holds what JSON has, got {value!r:.60} of type {type(value).__name__}")
    return value.tolist()


def write(record: Record, path: str | os.PathLike[str]) -> Path:
    """Writes the record atomically: readers see the old file or the new one, never a part.

    Raises:
        DocumentError: the path cannot be written, or the file could not be read; the error has the record.
    """
    text = json.dumps(to_json(record), indent=1) + "\n"  # ASCII
    try:
        try:
            if len(text) > MAXIMUM_BYTES:
                size, most = format_bytes(len(text)), format_bytes(MAXIMUM_BYTES)
                raise ValueError(f"it has {size}, a record may have {most} (cover less time, or fewer layers)")
            _parse(text.encode())
        except ValueError as error:
            raise DocumentError(f"cannot write {path}, as it could not be read: {error}") from error
        return write_text(text, path)
    except DocumentError as error:
        error.record = record
        raise


def write_text(text: str, path: str | os.PathLike[str]) -> Path:
    """Writes a text atomically, through a temporary file beside it.

    Raises:
        DocumentError: the path cannot be written.
    """
    # Through links, /dev/stdout among them: renaming onto one would replace it, and leave what it names as it was.
    target = Path(os.path.realpath(check_writable(path)))
    temporary = target
    try:
        # Readable by this user alone, as mkstemp makes it: it holds paths and names of models.
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise DocumentError(f"cannot write {path}: {error.strerror} (choose another path)") from error
    finally:
        if temporary != target:
            temporary.unlink(missing_ok=True)
    return Path(path)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Checks before minutes of work that a path can be written.

    Raises:
        DocumentError: the folder is missing or read-only, or the path is a folder, a pipe or a device.
    """
    target = Path(path)
    folder = target.parent
    try:
        there = target.exists()
        target.resolve()  # a path that no file can have does not exist
    except (OSError, ValueError, RuntimeError) as error:  # the last one for links that lead back to themselves
        reason = getattr(error, "strerror", error)
        raise DocumentError(f"cannot write {target}: {reason} (choose another path)") from error
    if target.is_dir():
        raise DocumentError(f"cannot write {target}: it is a folder (give a file name in it)")
    if there and not target.is_file():
        # The file would take its name: /dev/null would be a file from then on.
        raise DocumentError(f"cannot write {target}: not a regular file (give the path of one; --json prints a record)")
    if not folder.is_dir():
        raise DocumentError(f"cannot write {target}: there is no folder {folder} (create it, or choose another path)")
    if not os.access(folder, os.W_OK) or (there and not os.access(target, os.W_OK)):
        raise DocumentError(f"cannot write {target}: permission denied (choose another path)")
    return target


def read(path: str | os.PathLike[str], record_type: type[R]) -> R:
    """Reads and validates a record of a known kind.

    Raises:
        DocumentError: naming the file, and the field with its value where one is wrong.
    """
    return from_json(read_object(path), record_type, path)


def from_json(document: Mapping[str, Any], record_type: type[R], path: str | os.PathLike[str]) -> R:
    """Validates a parsed file as a record of ``record_type``; ``path`` is for the error."""
    from pydantic import ValidationError

    found, expected = document.get("format"), f"deeppool/{record_type.KIND}"
    if found != expected:
        raise DocumentError(f"{path}: field 'format' is {found!r}, expected {expected!r} (is it another kind of file?)")
    if document.get("version") != VERSION:
        raise DocumentError(
            f"{path}: field 'version' is {document.get('version')!r}, this deeppool reads {VERSION} "
            "(make the file again, or use the deeppool that wrote it)"
        )
    fields = {name: value for name, value in document.items() if name not in ("format", "version")}
    try:
        record: R = adapter(record_type).validate_python(fields)
        if hasattr(record, "check_totals"):  # against their parts, where a file could contradict itself
            record.check_totals()
    except ValidationError as error:
        raise DocumentError(f"{path}: {_describe(error.errors()[0])}") from error
    except InvalidValueError as error:
        raise DocumentError(f"{path}: {error}") from error
    return record


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Parses a file as one JSON object; every file that a user may have written is read by this function.

    Raises:
        DocumentError: it cannot be read, is no regular file or too large, is not JSON (lone surrogates, ``NaN`` and
            more than 200 levels of nesting included), is not an object, or holds a number out of range.
    """
    try:
        return _parse(_read_bytes(path))
    except ValueError as error:
        raise DocumentError(f"{path}: {error} (edited? truncated? make the file again)") from error


def _parse(content: bytes) -> dict[str, Any]:
    """Parses what a file holds; a ValueError says why none may hold it."""
    from pydantic_core import from_json

    try:
        document = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        problem = re.sub(r"(.*) at (line \d+) column (\d+)", r"at \2, column \3: \1", str(error))
        raise ValueError(f"not JSON {problem}") from error
    if not isinstance(document, dict):
        held = "a list" if isinstance(document, list) else repr(document)[:60]
        raise ValueError(f"holds {held}, expected an object with a 'format' field")
    _check_numbers(document)
    return document


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Opens a regular file for reading; a FIFO or a device, of which reading may never end, is refused.

    Raises:
        DocumentError: it is no regular file.
        OSError: it cannot be opened.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for its writer.
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise DocumentError(f"cannot read {path}: not a regular file (copy what it gives into a file first)")


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with open_regular(path) as stream:
            content = stream.read(MAXIMUM_BYTES + 1)
        content.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = "not a text file" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", error)
        raise DocumentError(f"cannot read {path}: {reason} (check the path)") from error
    if len(content) > MAXIMUM_BYTES:
        raise DocumentError(
            f"cannot read {path}: it has more than {format_bytes(MAXIMUM_BYTES)}, the most that a record may have "
            "(is it a file of deeppool?)"
        )
    return content


def _check_numbers(value: Any, field: str = "") -> None:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, dict | list):
            _check_numbers(item, f"{field}{key}.")
        elif isinstance(item, int | float) and not may_hold(item):
            limit = f"±{LARGEST[type(item)]:.3g}"
            raise ValueError(f"field '{field}{key}' is {number_checks.shown(item)}: numbers must be within {limit}")


def _holds_record(record: Record, name: str) -> bool:
    return hasattr(getattr(record, name), "KIND")


@functools.cache
def adapter(record_type: type[R]) -> "TypeAdapter[R]":
    """Returns the validator of a kind of record, which takes milliseconds to build."""
    from pydantic import TypeAdapter

    return TypeAdapter(record_type)


def _describe(detail: "ErrorDetails") -> str:
    """Formats the first validation error as ``field 'a.b' is 3: input should be …``."""
    field = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] == "missing":
        return f"field '{field}' is missing (made by another version, or edited?)"
    if detail["type"] == "value_error":  # by the record itself: its message has the value
        return f"field '{field}': {detail['ctx']['error']}" if field else str(detail["ctx"]["error"])
    return f"field '{field}' is {number_checks.shown(detail['input'])}: {message}"
