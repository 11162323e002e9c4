"""One event: a command, a fault at a random moment, and what became of the command."""

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from faults import LOST_GPU, ON_PROCESSES, apply, clock_environment, disk, lose_gpu
from left_behind import MARK, damaged, kind, pinned_ranks, processes, shared_memory, wait_for
from scenarios import HERE, Places, Scenario

START_SECONDS, LATEST = 1.0, 12.0
"""When the fault comes, in seconds after a process that it can hit is there, on an idle machine."""
LIMIT = 150.0
"""Seconds after the fault in which a command must have ended; idle machines take much less."""
SLOWEST = 4.0
LAUNCHER_STOPPED = 5.0
"""Seconds for which a launcher is stopped, as by Ctrl-Z, before it is continued."""
SERVICE_SECONDS = 25.0
"""Seconds after which a service that a fault has not ended must answer."""
GONE_SECONDS = 10.0
LOADER_ABORTS = 127
"""Exit code of a process that the dynamic loader ends since there is no memory for a library's thread-local data."""
NOT_HIT = "not hit"
"""How a command ends that had ended before its fault, or had no process to hit yet."""


@dataclass(frozen=True, slots=True)
class Event:
    """What became of one command."""

    number: int
    scenario: str
    fault: str
    victim: str
    """Kind of the process that was hit."""
    moment: float
    """Seconds after the first process that can be hit was there; 0: before."""
    end: str
    """``went on``, ``error``, ``with its launcher``, ``lost``, or ``not hit``."""
    seconds: float
    """From the fault to the end of the command."""
    said: str
    """Its last line of errors."""
    left: tuple[str, ...]
    """Processes, shared memory and files that stayed behind."""
    why: str = ""
    """Why it counts as lost."""


def run(number: int, scenario: Scenario, fault: str, draw: random.Random, places: Places) -> Event:
    """Starts the command, makes the fault, waits for the end, and looks what is left."""
    with tempfile.TemporaryDirectory(prefix="f") as name, ExitStack() as stack:
        folder = Path(name)
        for each in ("output", "t"):
            (folder / each).mkdir()
        stack.enter_context(disk(folder / "output", fault))
        temporary = folder / "output" / "t" if fault == "full disk" else folder / "t"
        temporary.mkdir(exist_ok=True)
        mark = f"{os.getpid()}-{number}"
        before = shared_memory()
        command = [
            str(word)
            for word in scenario.command(
                replace(places, output=folder / "output", steps=int(places.steps / slowness()))
            )
        ]
        launcher = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=stack.enter_context((folder / "errors").open("w")),
            env=_environment(mark, temporary, folder, fault),
            cwd=HERE,
            process_group=0,
        )
        try:
            return _observe(number, scenario, fault, draw, folder, temporary, mark, before, launcher)
        finally:
            # What removes temporary files outlives the launcher for a moment.
            launcher.kill()
            wait_for(lambda: not processes(mark), GONE_SECONDS)
            for process in processes(mark):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            launcher.wait()


def _environment(mark: str, temporary: Path, folder: Path, fault: str) -> dict[str, str]:
    # The deeppool beside this benchmark.
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    more = clock_environment(folder) if fault == "clock jump" else {}
    return {
        **os.environ,
        "TMPDIR": str(temporary),
        MARK: mark,
        "PYTHONPATH": paths,
        **more,
        "XDG_STATE_HOME": str(folder / "state"),
    }


def _observe(
    number: int,
    scenario: Scenario,
    fault: str,
    draw: random.Random,
    folder: Path,
    temporary: Path,
    mark: str,
    before: set[str],
    launcher: "subprocess.Popen[bytes]",
) -> Event:
    moment = 0.0 if fault == "read-only output" else draw.uniform(START_SECONDS, LATEST) * slowness()
    wait_for(lambda: launcher.poll() is not None or bool(_victims(scenario, fault, launcher, mark)), LIMIT)
    wait_for(lambda: launcher.poll() is not None, moment)
    not_hit = launcher.poll() is not None
    victim, struck = _strike(scenario, fault, launcher, mark, folder, draw)
    not_hit |= fault in ON_PROCESSES and not victim
    limit = SERVICE_SECONDS if scenario.service else LIMIT * slowness()
    wait_for(lambda: launcher.poll() is not None, limit)
    why = "" if launcher.poll() is not None or scenario.service else f"still there after {limit:.0f} s"
    seconds = time.monotonic() - struck
    answered = scenario.service and launcher.poll() is None and _answers()
    if scenario.service and launcher.poll() is None:
        why = "" if answered else "does not answer"
        launcher.terminate()
        why = why or ("" if wait_for(lambda: launcher.poll() is not None, GONE_SECONDS) else "does not end")
    ending = _ending(scenario, fault, victim, launcher.poll(), answered=answered, folder=folder)
    # A killed torchrun leaves its ranks, which end with their training.
    gone = LIMIT if scenario.foreign else GONE_SECONDS
    left = _left(mark, temporary, before, gone) if launcher.poll() is not None else ()
    harmed = damaged(folder / "output")
    why = why or ending[1] or harmed or ("left something behind" if left else "")
    end = NOT_HIT if not_hit else "lost" if why else ending[0]
    return Event(number, scenario.name, fault, victim, moment, end, seconds, _last_line(folder), left, why)


def slowness() -> float:
    """Returns how many times longer than on an idle machine everything takes, by the load of this one."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), SLOWEST)


def _strike(
    scenario: Scenario,
    fault: str,
    launcher: "subprocess.Popen[bytes]",
    mark: str,
    folder: Path,
    draw: random.Random,
) -> tuple[str, float]:
    """Makes the fault; returns the kind of process that was hit and when."""
    known = _victims(scenario, fault, launcher, mark)
    found = {kind(process, launcher.pid): process for process in draw.sample(known, len(known))}
    if launcher.poll() is not None or not found:
        return "", time.monotonic()
    name = draw.choice(sorted(found))
    struck = time.monotonic()
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        if fault == LOST_GPU:
            lose_gpu(psutil.Process(launcher.pid), found[name])
        else:
            apply(fault, found[name], folder, draw)
    if fault == "stop" and name == "launcher":
        time.sleep(LAUNCHER_STOPPED)
        launcher.send_signal(signal.SIGCONT)
    return name if fault in ON_PROCESSES else "", struck


def _victims(scenario: Scenario, fault: str, launcher: "subprocess.Popen[bytes]", mark: str) -> list[psutil.Process]:
    """Returns the processes that a fault may hit."""
    known = [process for process in processes(mark) if kind(process, launcher.pid) not in scenario.spared]
    return pinned_ranks(known) if fault == LOST_GPU else known


def _ending(
    scenario: Scenario, fault: str, victim: str, code: int | None, *, answered: bool, folder: Path
) -> tuple[str, str]:
    """Returns how a command ended, and why that is not right; empty: it is."""
    text = (folder / "errors").read_text(errors="replace")
    if code == 0 or answered:
        return "went on", ""
    killed = code is not None and (code < 0 or (fault == "out of memory" and code == LOADER_ABORTS))
    if victim == "launcher" and fault in ("kill", "out of memory") and killed:
        return "with its launcher", ""
    if scenario.foreign:
        return "error", ""
    lines = [line for line in text.splitlines() if line.startswith("error: ")]
    told = len(lines) == 1 or (scenario.report and not lines and any((folder / "output").glob(scenario.report)))
    if code == 1 and told and "Traceback" not in text:
        return "error", ""
    return "error", f"exit code {code} with {len(lines)} lines of error and {text.count('Traceback')} tracebacks"


def _left(mark: str, temporary: Path, before: set[str], seconds: float) -> tuple[str, ...]:
    """Returns what is still there some seconds after the end, at the last look: others' memory comes and goes."""
    found: list[str] = []

    def nothing_is_left() -> bool:
        found.clear()
        for process in processes(mark):
            with contextlib.suppress(psutil.Error):
                found.append(f"process {' '.join(process.cmdline())[-60:]}")
        found.extend([*_files(temporary), *sorted(shared_memory() - before)])
        return not found

    wait_for(nothing_is_left, seconds)
    return tuple(found)


def _files(temporary: Path) -> list[str]:
    return [str(path.relative_to(temporary)) for path in temporary.iterdir()] if temporary.is_dir() else []


def _last_line(folder: Path) -> str:
    lines = (folder / "errors").read_text(errors="replace").strip().splitlines()
    return next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")[:300]


def _answers() -> bool:
    """Whether JupyterLab answers; without its token it refuses, which is an answer."""
    try:
        urllib.request.urlopen("http://127.0.0.1:28765/api", timeout=5)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
