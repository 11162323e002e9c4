"""An exception that no command expects: one line for the reader, and its traceback in a file for who mends it."""

import os
import tempfile
import traceback
from pathlib import Path


def report_internal_error(error: Exception) -> str:
    """Writes the traceback to a private file; returns the line that says so."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split())
    try:
        handle, path = tempfile.mkstemp(prefix="deeppool-traceback-", suffix=".txt")
        with os.fdopen(handle, "w") as file:
            traceback.print_exception(error, file=file)
        where = f"the traceback is in {path}"
    except OSError as unwritten:
        where = f"the traceback cannot be written: {unwritten.strerror}"
    return (
        f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}: {said} (if a file was edited, make "
        f"it again; else this is a defect of deeppool or of your code: {where})"
    )
