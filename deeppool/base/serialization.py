"""Records as files: versioned JSON, written whole or not at all, validated when read.

A file is one JSON object, ``{"format": "deeppool/<kind>", "version": 1, …fields}``. A record is a
frozen dataclass with ``KIND`` set; pydantic validates its fields by their annotations.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from deeppool.errors import DocumentError

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

VERSION = 1


class Record(Protocol):
    """A dataclass that can be a file."""

    KIND: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]


R = TypeVar("R", bound=Record)


def to_json(record: Record) -> dict[str, Any]:
    """The record as a JSON object, format and version first; ``origin``, its own or a held record's, stays behind."""
    held: dict[str, Any] = {x.name: {"origin"} for x in dataclasses.fields(record) if _holds_record(record, x.name)}
    fields = _adapter(type(record)).dump_python(record, mode="json", exclude={"origin": True, **held})
    return {"format": f"deeppool/{record.KIND}", "version": VERSION, **fields}


def write(record: Record, path: str | os.PathLike[str]) -> Path:
    """Writes the record atomically: readers see the old file or the new one, never a part.

    Raises:
        DocumentError: the path cannot be written.
    """
    return write_text(json.dumps(to_json(record), indent=1, allow_nan=False) + "\n", path)


def write_text(text: str, path: str | os.PathLike[str]) -> Path:
    """Writes a text atomically, through a temporary file beside it.

    Raises:
        DocumentError: the path cannot be written.
    """
    target = check_writable(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise DocumentError(f"cannot write {target}: {error.strerror} (choose another path)") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Says now, not after minutes of work, that a path cannot be written.

    Raises:
        DocumentError: the folder is missing or read-only, or the path is a folder.
    """
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise DocumentError(f"cannot write {target}: it is a folder (give a file name in it)")
    if not folder.is_dir():
        raise DocumentError(f"cannot write {target}: there is no folder {folder} (create it, or choose another path)")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
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
        return _adapter(record_type).validate_python(fields)
    except ValidationError as error:
        raise DocumentError(f"{path}: {_describe(error.errors()[0])}") from error


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Parses a file as one JSON object.

    Raises:
        DocumentError: it cannot be read, is not JSON, or is not an object.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise DocumentError(f"cannot read {path}: {reason} (check the path)") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"{path}: not JSON at line {error.lineno}, column {error.colno}: {error.msg} (truncated? make it again)"
        ) from error
    if not isinstance(document, dict):
        raise DocumentError(f"{path}: holds a {type(document).__name__}, expected an object with a 'format' field")
    return document


def _holds_record(record: Record, name: str) -> bool:
    return hasattr(getattr(record, name), "KIND")


def _adapter(record_type: type[R]) -> "TypeAdapter[R]":
    from pydantic import TypeAdapter

    return TypeAdapter(record_type)


def _describe(detail: "ErrorDetails") -> str:
    """The first validation error as ``field 'a.b' is 3: input should be …``."""
    field = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"][0].lower() + detail["msg"][1:]
    if detail["type"] == "missing":
        return f"field '{field}' is missing (made by another version, or edited?)"
    value = repr(detail["input"])
    return f"field '{field}' is {value if len(value) <= 60 else value[:57] + '...'}: {message}"
