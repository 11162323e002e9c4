"""Control groups of Linux: a core divided between two processes by weight.

The scheduler shares a core between groups first, by their weights, and inside a group between its processes. So a
weight means something only where both jobs are in groups of their own, and a priority only where both are in the
same: SCHED_IDLE in one group takes half of a core from a process in another. (Linux,
Documentation/scheduler/sched-design-CFS, section 7; Documentation/admin-guide/cgroup-v2, "CPU")
"""

import contextlib
import math
import os
import time
from pathlib import Path

ORDINARY_SHARES, LEAST_SHARES = 1024, 2
"""``cpu.shares`` of version 1."""
ORDINARY_WEIGHT, LEAST_WEIGHT, MOST_WEIGHT = 100, 1, 10_000
"""``cpu.weight`` of version 2."""
NICE_STEP = 1.25
"""Ratio of the weights of two processes that are one nice level apart."""
LEAVING_SECONDS = 1.0
"""Seconds until killed processes have left their group."""


def home() -> Path | None:
    """Returns the folder in which this process may create CPU control groups, or None."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        mount, here = _own_group()
        if (mount / "cgroup.controllers").exists():
            # Groups with processes have no weighted children, so the new ones are siblings of this process's own.
            beside = here if here == mount else here.parent
            enabled = (beside / "cgroup.subtree_control").read_text().split()
            return _writable(beside) if "cpu" in enabled else None
        return _writable(here)
    return None


def quota() -> float | None:
    """Returns the cores whose time the control groups of this process give it, as those of a container; None: all."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        mount, here = _own_group()
        # A container may see its own group as the mount, and the path of its host.
        groups = [group for group in (here, *here.parents) if group.is_relative_to(mount)]
        return min((cores for group in groups if (cores := _quota_of(group)) is not None), default=None)
    return None


def _own_group() -> tuple[Path, Path]:
    """Returns where CPU control groups are mounted, and this process's own.

    Raises:
        StopIteration: there are none.
    """
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next(path for controllers, path in own.items() if "cpu" in controllers.split(","))
            return Path(mount), Path(mount + path)
        if kind == "cgroup2" and "cpu" in (Path(mount) / "cgroup.controllers").read_text().split():
            return Path(mount), Path(mount + own[""])
    raise StopIteration


def _quota_of(group: Path) -> float | None:
    """Returns the cores whose time one group gives its processes; None: all."""
    with contextlib.suppress(OSError):
        of_version_1 = group / "cpu.cfs_quota_us"
        if of_version_1.exists():
            time, period = of_version_1.read_text(), (group / "cpu.cfs_period_us").read_text()
        else:
            time, period = (group / "cpu.max").read_text().split()
        return None if time.strip() in ("max", "-1") else int(time) / int(period)
    return None


def _writable(group: Path) -> Path | None:
    return group if os.access(group, os.W_OK) and os.access(group / "cgroup.procs", os.W_OK) else None


def join(name: str, weight: float) -> bool:
    """Moves this process and its future children into a group, created if missing; returns False without permission.

    Args:
        name: name of the group; begins with the name of the run's private folder, whose cleanup watchdog removes it.
        weight: relative weight of the group; 1 is the default weight of every group.
    """
    where = home()
    if where is None:
        return False
    group = where / name
    try:
        group.mkdir(exist_ok=True)
        if (group / "cpu.shares").exists():
            (group / "cpu.shares").write_text(str(max(LEAST_SHARES, round(weight * ORDINARY_SHARES))))
        else:
            wanted = round(weight * ORDINARY_WEIGHT)
            (group / "cpu.weight").write_text(str(min(max(LEAST_WEIGHT, wanted), MOST_WEIGHT)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return False
    return True


def remove(where: Path | None, run: str) -> None:
    """Removes the groups of a run whose processes have ended.

    Args:
        where: result of :func:`home`.
        run: prefix of their names.
    """
    deadline = time.monotonic() + LEAVING_SECONDS
    for group in [] if where is None else where.glob(f"{run}-*"):
        while group.exists() and time.monotonic() < deadline:
            try:
                group.rmdir()
            except OSError:
                time.sleep(0.01)


def join_background(run: str, rank: int, share: float) -> str:
    """Gives this background process a share of its core against the foreground; returns a description of it.

    Args:
        run: name of the private folder.
        rank: foreground rank on the same core.
        share: share of the core, in (0, 1), while both need it. The foreground has the default weight of a group.
    """
    weight = share / (1 - share)
    if join(f"{run}-{rank}-background", weight):
        return f"{100 * share:g} % in a control group"
    level = min(max(0, round(-math.log(weight) / math.log(NICE_STEP))), 19)
    os.nice(level)
    return f"nice {level}, no control group may be made here"


def join_foreground(run: str, rank: int) -> bool:
    """Moves this process into the group of a rank's foreground: weights and priorities apply inside a group."""
    return join(f"{run}-{rank}-foreground", 1.0)
