"""Describes the exception that ends a rank: its kind, the activity and line that it ended, and what to do.

``refusal``     one of deeppool's own errors: trying again changes nothing
``memory``      an allocation failed
``connection``  another rank was unreachable, most often because that rank failed
``loader``      a process that loads data was lost
``error``       anything else, most often of the user's own code
"""

import errno
import os
import re
import resource
import traceback
from typing import Any

import torch
import torch.distributed as dist

from deeppool.base.user_code import user_frame
from deeppool.device.cuda import gpu_memory
from deeppool.errors import DeeppoolError
from deeppool.processes.managed_process import CommandChannel
from deeppool.units import format_bytes

RENDEZVOUS = "meeting the other ranks"
"""Activity of a rank that joins the process group."""

_MEETING_FILE = (
    f"cannot write the file in which the ranks meet: {os.strerror(errno.ENOSPC)} (TMPDIR names another folder)"
)
_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory|Unable to allocate|std::bad_alloc",
    re.IGNORECASE,
)
_ASKED = re.compile(r"(?:tried to allocate|Unable to allocate) ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
_GLOO = re.compile(r"gloo/|[Cc]onnection (?:closed|reset|refused)|Broken pipe|Socket closed")
_LOADER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) "
    r"(?:is killed by signal: (?P<signal>[^.]+)|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def report_failure(commands: CommandChannel, error: BaseException, doing: str) -> dict[str, Any]:
    """Sends a ``failed`` answer to the launcher, and returns its content.

    Args:
        commands: channel to the launcher.
        error: exception that ends this process.
        doing: activity of the process.
    """
    try:
        failure = describe_failure(error, doing)
        commands.answer("failed", **failure)
    except RuntimeError as second:
        # torch raises one wherever this process is when a loader's end is signalled: most often while it waits for
        # samples, but here too.
        failure = describe_failure(second, doing)
        commands.answer("failed", **failure)
    return failure


def describe_failure(error: BaseException, doing: str) -> dict[str, Any]:
    """Returns the content of a ``failed`` answer.

    Args:
        error: exception that ends the rank.
        doing: activity of the rank.
    """
    kind = _kind(error, doing)
    if _is_full_disk(error):
        text = _MEETING_FILE
    elif kind == "refusal":
        text = str(error)
    elif kind == "memory":
        text = f"ran out of memory in {doing}: {_memory_text(error)}"
    elif doing == RENDEZVOUS:
        text = f"could not reach the other ranks ({_last_line(error)})"
    elif kind == "loader":
        text = f"lost a process that loads its data in {doing}: {_loader_text(error)}"
    elif kind == "connection":
        text = f"lost its connection to another rank in {doing} ({_last_line(error)})"
    else:
        text = f"failed in {doing}: {_last_line(error)}{_last_user_line(error)}"
    return {"kind": kind, "doing": doing, "text": text, "traceback": "".join(traceback.format_exception(error))}


def _kind(error: BaseException, doing: str) -> str:
    if isinstance(error, DeeppoolError) or _is_full_disk(error):
        return "refusal"
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "memory"
    if isinstance(error, RuntimeError | OSError) and _NO_MEMORY.search(str(error)):
        return "memory"
    if isinstance(error, dist.DistError) or doing == RENDEZVOUS:
        return "connection"
    if isinstance(error, RuntimeError) and _GLOO.search(str(error)):
        return "connection"
    if isinstance(error, RuntimeError) and _LOADER.search(str(error)):
        return "loader"
    if isinstance(error, OSError | EOFError) and _while_samples_came(error):
        return "loader"
    return "error"


def _is_full_disk(error: BaseException) -> bool:
    """Whether the file in which ranks meet could not be written; torch passes on the text of the system's error."""
    return isinstance(error, dist.DistError) and os.strerror(errno.ENOSPC) in str(error)


def _while_samples_came(error: BaseException) -> bool:
    """Whether an error comes from a data loader's process; errors of the dataset's own are raised elsewhere."""
    return any(frame.f_code.co_name == "_try_get_data" for frame, _ in traceback.walk_tb(error.__traceback__))


def _loader_text(error: BaseException) -> str:
    """Describes in one sentence how a loader's process ended, whichever of torch's ways detected it first.

    One is a signal from the kernel, with the signal or exit code. Another finds the process gone, and has neither
    unless the first one woke it. The third finds the process ending, also without either.
    """
    matches: list[re.Match[str]] = []
    step: BaseException | None = error
    while step is not None:
        if found := _LOADER.search(str(step)):
            matches.append(found)
        step = step.__cause__ or step.__context__
    if not matches:
        return f"it ended while it sent samples ({_last_line(error)})"
    known = next((found for found in matches if found["signal"] or found["code"]), matches[0])
    if known["signal"]:
        reason = f"was killed by a signal ({known['signal']})"
    else:
        reason = f"ended with exit code {known['code']}" if known["code"] else "ended without an exit code"
    return f"process{'es' * (',' in known['pids'])} {known['pids']} {reason}"


def _memory_text(error: BaseException) -> str:
    """Describes how much memory was requested, and how much there is."""
    import psutil

    asked = _ASKED.search(str(error))
    size = f"{format_bytes(int(float(asked[1]) * _UNITS[asked[2].lower()]))} more were" if asked else "more was"
    parts = [f"{size} asked for"]
    if isinstance(error, torch.OutOfMemoryError) and (memory := gpu_memory()) is not None:
        free, total = memory
        parts.append(f"the GPU has {format_bytes(free)} of {format_bytes(total)} left")
    else:
        parts.append(f"it holds {format_bytes(psutil.Process().memory_info().rss)}")
        parts.append(f"the machine has {format_bytes(psutil.virtual_memory().available)} left")
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            parts.append(f"a process may address {format_bytes(limit)} (ulimit -v)")
    return f"{', '.join(parts)}{_last_user_line(error)}"


def _last_line(error: BaseException) -> str:
    """Returns the error's message, without the traceback that a loader's process puts into it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines else ""
    name = type(error).__name__
    return said if said.startswith(name) else f"{name}: {said}".removesuffix(": ")


def _last_user_line(error: BaseException) -> str:
    """Returns the last line of user code in the traceback."""
    frame = user_frame(error)
    return "" if frame is None else f", at {frame.filename}:{frame.lineno} in {frame.name}"
