"""Repeated start, and kill or stop of any process at any moment, ends in time and leaves nothing behind.

``DEEPPOOL_SOAK_CYCLES=200`` is the long version (``make soak``); ``DEEPPOOL_SOAK_SEED`` repeats another one.
"""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

import deeppool as dp
from benchmarks.faults.left_behind import shared_memory, wait_for
from deeppool.execution.checkpoint import latest, load_weights
from deeppool.processes.stop_detector import STOPPED_SECONDS
from tests.execution import soak_job
from tests.processes.children import gone

CYCLES = int(os.environ.get("DEEPPOOL_SOAK_CYCLES", "2"))
SEED = int(os.environ.get("DEEPPOOL_SOAK_SEED", "1"))
CYCLE_SECONDS = 300
GONE_SECONDS = 180
"""Seconds within which every process has ended after a fault; on a busy machine the lowest priority takes long."""
STOP_SECONDS = STOPPED_SECONDS + 10
"""Seconds of a stop that is noticed."""
LONG = 100_000
"""Number of updates that no cycle reaches."""
PROCESSES_OF_RUN = 9
"""Launcher, fork server, cleanup watchdog of its folder; of each of two ranks foreground, background, spinner."""
# Who is hit: the launcher as by its terminal, by `kill`, by `kill -9`; one of its children, or one of theirs.
FAULTS = [
    ("launcher", signal.SIGINT),
    ("launcher", signal.SIGTERM),
    ("launcher", signal.SIGHUP),
    ("launcher", signal.SIGKILL),
    ("child", signal.SIGKILL),
    ("child", signal.SIGTERM),
    ("child", signal.SIGSEGV),
    ("child", signal.SIGSTOP),
]
KINDS = {
    "launcher": "",
    "fork server": "deeppool.processes.fork_server",
    "rank": "deeppool.execution.worker",
    "background job": "deeppool.collocation.background_process",
    "spinner": "deeppool.collocation.spinner",
    "watchdog": "/bin/sh",
}
"""Every kind of process of a run, by the beginning of a word of its command line."""
STOPS_AND_KILLS = [(kind, what) for kind in (*KINDS, "child") for what in (signal.SIGSTOP, signal.SIGKILL)]
STOPS_AND_KILLS += [("launcher and fork server", signal.SIGKILL)]
STOP_CYCLES = 2 * len(STOPS_AND_KILLS)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.usefixtures("in_the_checkout"),
    pytest.mark.timeout(max(CYCLES, STOP_CYCLES) * CYCLE_SECONDS),
]


def mark_of(process: psutil.Process) -> str | None:
    """Returns the cycle of a process from its environment, which its descendants inherit."""
    try:
        return process.environ().get("DEEPPOOL_SOAK_MARK")
    except psutil.Error:
        return None


def live_processes(mark: str) -> list[psutil.Process]:
    found = [process for process in psutil.process_iter() if mark_of(process) == mark]
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]
    return live_processes(mark)


def listening() -> set[tuple[str, int]]:
    return {(x.laddr.ip, x.laddr.port) for x in psutil.net_connections("tcp") if x.status == psutil.CONN_LISTEN}


def ports(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    """Returns the ports at which the processes listen."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found |= {
                (x.laddr.ip, x.laddr.port) for x in process.net_connections("tcp") if x.status == psutil.CONN_LISTEN
            }
    return found


def is_under_way(mark: str, kept: Path, checkpoint: Path | None) -> bool:
    """Whether the training has written a checkpoint or the run has started all its processes."""
    return latest(kept) != checkpoint or len(live_processes(mark)) == PROCESSES_OF_RUN


def victims(kind: str, launcher: psutil.Process, children: list[psutil.Process], draw: random.Random) -> list:
    """Returns the processes that a fault hits: one that exists, or those named."""
    found = []
    for name in kind.split(" and "):
        known = [each for each in children if any(word.startswith(KINDS.get(name, "")) for word in words_of(each))]
        found.append(launcher if name == "launcher" or not known else draw.choice(known))
    return found


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def wait_for_the_end_of_a_stop(hit: psutil.Process, launcher: subprocess.Popen) -> None:
    """Waits until a stopped process is ended; the launcher is continued after longer than that, and still runs."""
    if hit.pid == launcher.pid:
        time.sleep(STOP_SECONDS)
        hit.resume()
        assert not wait_for(lambda: launcher.poll() is not None, 3), f"after a stop: {launcher.stderr.read()}"
    elif is_detected(hit):
        longest = STOPPED_SECONDS + GONE_SECONDS
        assert wait_for(lambda: gone(hit) or launcher.poll() is not None, longest), "still stopped"


def is_detected(process: psutil.Process) -> bool:
    """Whether a stop is noticed: the watchdog ends with its launcher; a loader's rank hangs, which takes longer."""
    try:
        return not any("worker" in word for word in words_of(process.parent())) and words_of(process)[0] != "/bin/sh"
    except (psutil.Error, AttributeError, IndexError):
        return False


def run_cycle(
    number: int, draw: random.Random, plan: Path, folder: Path, fault: tuple[str, signal.Signals] | None = None
) -> str:
    """Starts a command, lets a fault happen, and checks what is left; returns what was done.

    A given fault happens when the command is under way, in a run, which has every kind of process.
    """
    mark, temporary, kept = f"{os.getpid()}-{number}", folder / "tmp", folder / "checkpoints"
    temporary.mkdir(exist_ok=True)
    commands = {
        "train": ["train", str(plan), "tests.execution.soak_job:job", "--steps", str(LONG), "--checkpoints", str(kept)],
        "run": ["run", str(plan), "--background", "tests.execution.soak_job:net", "--seconds", "600"],
    }
    kind = draw.choices(["train", "run"], [3, 1])[0] if fault is None or fault[0] == "child" else "run"
    extra = ["--checkpoint-every", "5"] if kind == "train" else []
    victim, what = fault or draw.choice(FAULTS)
    environment = {**os.environ, "TMPDIR": str(temporary), "DEEPPOOL_SOAK_MARK": mark}
    before, checkpoint = shared_memory(), latest(kept)
    launcher = subprocess.Popen(
        [sys.executable, "-c", HEEDING_SIGNALS, *commands[kind], *extra],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        process_group=0,
    )
    with launcher:
        # Half of the faults come while it starts, of which every moment counts, half when it is under way.
        moment, first, last = draw.choice([("its start", 0.7, 10.0), ("being under way", 0.0, 4.0)])
        if fault is not None:
            moment, first, last = "being under way", 0.0, 16.0
        delay = draw.uniform(first, last)
        description = f"cycle {number}: {kind}, {what.name} to the {victim} {delay:.1f} s after {moment}"
        if moment == "being under way":
            wait_for(lambda: is_under_way(mark, kept, checkpoint) or launcher.poll() is not None, CYCLE_SECONDS / 2)
        # No synchronisation: the fault's own timing.
        time.sleep(delay)
        everything = live_processes(mark)
        mine = ports(everything)
        children = [process for process in everything if process.pid != launcher.pid]
        if launcher.poll() is not None:
            raise AssertionError(f"{description}: it had ended by itself: {launcher.stderr.read()}")
        for hit in victims(victim, psutil.Process(launcher.pid), children, draw):
            with contextlib.suppress(psutil.Error):
                description += f" ({' '.join(hit.cmdline()[-2:])[-60:]}, one of {len(everything)} processes)"
                hit.send_signal(what)
        if what == signal.SIGSTOP:
            wait_for_the_end_of_a_stop(hit, launcher)
        spared = (hit.pid != launcher.pid or what == signal.SIGSTOP) and not _ends_the_run(hit, launcher, what)
        if spared:
            launcher.send_signal(signal.SIGINT)
        try:
            _, error = launcher.communicate(timeout=GONE_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.send_signal(signal.SIGUSR1)
            time.sleep(1)
            launcher.kill()
            _, error = launcher.communicate()
            raise AssertionError(f"{description}: the launcher is still there: {error}") from None
    left = [] if wait_for(lambda: not live_processes(mark), GONE_SECONDS) else live_processes(mark)
    for process in left:
        with contextlib.suppress(psutil.Error):
            description += f"; left {process.pid} {process.status()} {' '.join(process.cmdline())[-80:]}"
            process.kill()
    assert not left, description
    # A process loses its environment, by which it is known, a moment before its sockets.
    assert wait_for(lambda: not (mine & listening()), GONE_SECONDS), f"{description}: {mine & listening()}"
    assert wait_for(lambda: not any(temporary.iterdir()), GONE_SECONDS), f"{description}: {list(temporary.rglob('*'))}"
    # Between two looks another process may have made some.
    assert wait_for(lambda: shared_memory() <= before, GONE_SECONDS), f"{description}: {shared_memory() - before}"
    if launcher.returncode > 0:
        assert "Traceback" not in error, f"{description}: {error}"
        *progress, last = error.splitlines()
        assert last.startswith("error: "), f"{description}: {error!r}"
        # A command that takes long says now and then how far it is.
        assert all(re.match(r"\d+% ", line) for line in progress), f"{description}: {error!r}"
    found = latest(kept)
    assert found is None or all(value.isfinite().all() for value in load_weights(found).values()), description
    return f"{description}: {error.strip()[:150]}"


def _ends_the_run(hit: psutil.Process, launcher: subprocess.Popen, what: signal.Signals) -> bool:
    """Ranks do; a background job, a spinner, a loader of data or the keeper of the folder need not."""
    try:
        return wait_for(lambda: launcher.poll() is not None, 3)
    except psutil.Error:
        return True


HEEDING_SIGNALS = """
import faulthandler, signal
# Where it hangs, should it do so.
faulthandler.register(signal.SIGUSR1)
# As in test_faults: what runs this may ignore Ctrl-C, or a hang-up as nohup does.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from deeppool.cli import main
main()
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Folder with a short path: paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        yield Path(name)


@pytest.mark.stress
def test_nothing_stays_behind_after_a_kill_of_any_process_at_any_moment(short_path: Path) -> None:
    draw = random.Random(SEED)
    plan = dp.save(soak_job.plan(2), short_path / "plan.json")
    for number in range(CYCLES):
        print(run_cycle(number, draw, plan, short_path), flush=True)
    kept = latest(short_path / "checkpoints")
    assert kept is None or torch.is_tensor(next(iter(load_weights(kept).values())))


@pytest.mark.stress
def test_a_stop_or_kill_of_every_kind_of_process_ends_in_time_and_leaves_nothing(short_path: Path) -> None:
    draw = random.Random(SEED)
    plan = dp.save(soak_job.plan(2), short_path / "plan.json")
    for number, fault in enumerate(draw.sample(2 * STOPS_AND_KILLS, STOP_CYCLES)):
        print(run_cycle(number, draw, plan, short_path, fault), flush=True)
