"""What a rank tells of the exception that ends it: of what kind it is, where it was, and what to do.

``refusal``     one of deeppool's own errors: trying again changes nothing
``memory``      an allocation failed
``connection``  another rank was not there: most often the victim of that rank's end
``loader``      a process that loads data was lost
``error``       anything else, most often of the user's own code
"""

import re
import resource
import traceback
from typing import Any

import torch
import torch.distributed as dist

from deeppool.errors import DeeppoolError
from deeppool.processes.heartbeat import is_library
from deeppool.processes.managed_process import CommandChannel
from deeppool.units import format_bytes

RENDEZVOUS = "meeting the other ranks"
"""What a rank does that joins the process group."""

_NO_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|Cannot allocate memory|Unable to allocate", re.IGNORECASE
)
_ASKED = re.compile(r"(?:tried to allocate|Unable to allocate) ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
_GLOO = re.compile(r"gloo/|[Cc]onnection (?:closed|reset|refused)|Broken pipe|Socket closed")
_LOADER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) "
    r"(?:is killed by signal: (?P<signal>[^.]+)|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def report_failure(commands: CommandChannel, error: BaseException, doing: str) -> dict[str, Any]:
    """Answers ``failed``, and returns what it told.

    Args:
        commands: of the launcher.
        error: that ends this process.
        doing: what it was at.
    """
    try:
        told = describe_failure(error, doing)
        commands.answer("failed", **told)
    except RuntimeError as second:
        # torch raises one wherever this process is when it hears of a loader's end: most often while it reads the
        # samples that do not come, but here too.
        told = describe_failure(second, doing)
        commands.answer("failed", **told)
    return told


def describe_failure(error: BaseException, doing: str) -> dict[str, Any]:
    """The content of a ``failed`` answer.

    Args:
        error: that ends the rank.
        doing: what the rank was at.
    """
    kind = _kind(error, doing)
    if kind == "refusal":
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
    if isinstance(error, DeeppoolError):
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


def _while_samples_came(error: BaseException) -> bool:
    """From a loader: errors of the data's own are raised elsewhere, once they have come."""
    return any(frame.f_code.co_name == "_try_get_data" for frame, _ in traceback.walk_tb(error.__traceback__))


def _loader_text(error: BaseException) -> str:
    """How a loader ended, in one sentence, whichever of torch's ways noticed it first.

    One is told by the kernel, and knows the signal or the exit code. Another finds the process gone, and knows
    neither, unless it was woken by the first. The third finds the process ending, and knows no more than that.
    """
    told: list[re.Match[str]] = []
    step: BaseException | None = error
    while step is not None:
        if found := _LOADER.search(str(step)):
            told.append(found)
        step = step.__cause__ or step.__context__
    if not told:
        return f"it went away while it handed over samples ({_last_line(error)})"
    known = next((found for found in told if found["signal"] or found["code"]), told[0])
    if known["signal"]:
        reason = f"was killed by a signal ({known['signal']})"
    else:
        reason = f"ended with exit code {known['code']}" if known["code"] else "ended, and told nobody how"
    return f"process{'es' * (',' in known['pids'])} {known['pids']} {reason}"


def _memory_text(error: BaseException) -> str:
    """How much was asked for, and how much there is."""
    import psutil

    asked = _ASKED.search(str(error))
    size = f"{format_bytes(int(float(asked[1]) * _UNITS[asked[2].lower()]))} more were" if asked else "more was"
    parts = [f"{size} asked for"]
    if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        parts.append(f"the GPU has {format_bytes(free)} of {format_bytes(total)} left")
    else:
        parts.append(f"it holds {format_bytes(psutil.Process().memory_info().rss)}")
        parts.append(f"the machine has {format_bytes(psutil.virtual_memory().available)} left")
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            parts.append(f"a process may address {format_bytes(limit)} (ulimit -v)")
    return f"{', '.join(parts)}{_last_user_line(error)}"


def _last_line(error: BaseException) -> str:
    """What happened, without the traceback that a loader's process puts into its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if lines else ""
    name = type(error).__name__
    return said if said.startswith(name) else f"{name}: {said}".removesuffix(": ")


def _last_user_line(error: BaseException) -> str:
    """The last line of the user's own that was under way."""
    steps = traceback.extract_tb(error.__traceback__)
    found = [step for step in steps if not is_library(step.filename)]
    return f", at {found[-1].filename}:{found[-1].lineno} in {found[-1].name}" if found else ""
