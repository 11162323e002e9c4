"""Shares of a core by weight: they hold, and their groups are gone with the run, however that ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from deeppool.device import control_group
from deeppool.device.cpu import usable_cores
from deeppool.processes.rank_group import private_folder
from tests.waiting import wait_until

HOME = control_group.home()
permitted = pytest.mark.skipif(HOME is None, reason="control groups may not be made here")

BURN = """
import sys, threading
from deeppool.device import control_group
from deeppool.device.cpu import pin_to_core
run, share, core = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
print(control_group.join_background(run, 0, share) if share else control_group.join_foreground(run, 0), flush=True)
pin_to_core(core)
sys.stdin.readline()
told = threading.Thread(target=sys.stdin.readline)
told.start()
while told.is_alive():
    pass
"""
LAUNCH = """
import subprocess, sys
from deeppool.processes.rank_group import private_folder
with private_folder() as folder:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], folder.name, "0.5", "0"], stdin=subprocess.PIPE)
    print(folder, flush=True)
    child.wait()
"""


def burner(run: str, share: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BURN, run, str(share), str(usable_cores()[0])]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def used(process: subprocess.Popen[str]) -> float:
    """CPU seconds of a process."""
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def groups(run: str) -> list[Path]:
    assert HOME is not None
    return sorted(HOME.glob(f"{run}-*"))


@permitted
@pytest.mark.processes
def test_a_background_gets_its_share_of_the_core_while_both_want_it() -> None:
    with private_folder() as folder, burner(folder.name, 0) as front, burner(folder.name, 0.2) as back:
        assert (line(front), line(back)) == ("True", "20 % in a control group")
        for process in (front, back):
            go(process)
        started = used(front), used(back)
        wait_until(lambda: used(front) > started[0] + 0.1 and used(back) > started[1], 120)
        before = used(front), used(back)
        wait_until(lambda: used(front) > before[0] + 1.0, 120)
        theirs, mine = (now - then for now, then in zip((used(front), used(back)), before, strict=True))
        for process in (front, back):
            go(process)
        assert mine / (theirs + mine) == pytest.approx(0.2, abs=0.1)
        assert len(groups(folder.name)) == 2
    assert groups(folder.name) == []


@permitted
@pytest.mark.processes
def test_groups_are_gone_after_the_launcher_was_killed() -> None:
    command = [sys.executable, "-c", LAUNCH, BURN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as launcher:
        assert launcher.stdout is not None
        said = {launcher.stdout.readline().strip(), launcher.stdout.readline().strip()}
        (folder,) = (Path(found) for found in said if found.startswith(os.sep))
        wait_until(lambda: len(groups(folder.name)) == 1, 120)
        os.kill(launcher.pid, signal.SIGKILL)
    wait_until(lambda: not groups(folder.name) and not folder.exists(), 120)


@pytest.mark.parametrize(("share", "level"), [(0.5, 0), (0.2, 6), (0.1, 10), (0.01, 19), (0.8, 0)])
def test_where_no_group_may_be_made_the_nearest_nice_level_stands_in(
    share: float, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux weighs nice levels by 1.25 each: 6 levels make 1/3.8, for a share of 0.2, that is a weight of 1/4."""
    levels: list[int] = []
    monkeypatch.setattr(control_group, "home", lambda: None)
    monkeypatch.setattr(os, "nice", levels.append)
    told = control_group.join_background("run", 0, share)
    assert levels == [level]
    assert told == f"nice {level}, no control group may be made here"


LIMITED = """
import os, sys
from pathlib import Path
from deeppool.device import control_group
from deeppool.processes.launcher import LocalLauncher
group, cores = Path(sys.argv[1]), int(sys.argv[2])
(group / "cgroup.procs").write_text(str(os.getpid()))
print(control_group.quota(), [LocalLauncher("cpu", ranks).cores for ranks in range(1, cores + 1)])
"""


@permitted
@pytest.mark.parametrize("inside", [False, True], ids=["its own group", "the group above"])
@pytest.mark.parametrize("quota", [None, 0.5, 1.5])
def test_ranks_beyond_the_quota_of_a_container_share_cores(quota: float | None, inside: bool) -> None:
    """A run of two ranks under ``docker run --cpus 1`` said that each had a core of its own."""
    assert HOME is not None
    limited = HOME / f"deeppool-test-{os.getpid()}-quota"
    group = limited / "inside" if inside else limited
    try:
        limited.mkdir()
        version_1 = (limited / "cpu.cfs_quota_us").exists()
        if inside and not version_1:
            (limited / "cgroup.subtree_control").write_text("+cpu")
        group.mkdir(exist_ok=True)
        time = None if quota is None else str(round(quota * 100_000))
        if version_1:
            (limited / "cpu.cfs_quota_us").write_text(time or "-1")
        else:
            (limited / "cpu.max").write_text(f"{time or 'max'} 100000")
        count = len(usable_cores())
        command = [sys.executable, "-c", LIMITED, str(group), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    finally:
        for each in (limited / "inside", limited):
            if each.exists():
                each.rmdir()
    cores = [ranks if quota is None else 1 for ranks in range(1, count + 1)]
    assert done.stdout == f"{quota} {cores}\n"
