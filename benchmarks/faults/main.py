"""What becomes of each command when a process is killed or stopped, a disk is full, a clock jumps, a network is cut?

    python benchmarks/faults/main.py -o faults.json --events 500     # Linux; root for disks and networks, cc for clocks

Event after event: a command, one of its processes, a fault and a moment are drawn from the seed and the number of the
event. The file holds all events and is written after each; the same command makes those that are missing there.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from event import NOT_HIT, Event, run
from faults import needs_root
from job import write_plan
from scenarios import SCENARIOS, Places, Scenario
from small_notebooks import write_notebooks

from deeppool.base import serialization

ISOLATED = "DEEPPOOL_FAULTS_ISOLATED"
"""Variable of the environment of a process that has its own mounts and network."""
MOUNTS = """
mount -t tmpfs tmpfs /dev/shm && mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns || exit 1
ip link set lo up && exec "$@"
"""


def isolate() -> None:
    """Starts this process again with shared memory and a network of its own: other work on the machine has the same."""
    if os.geteuid() == 0 and not os.environ.get(ISOLATED):
        os.environ[ISOLATED] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--net", "sh", "-c", MOUNTS, "sh", sys.executable, *sys.argv])


def drawn(number: int, seed: int, pairs: Sequence[tuple[Scenario, str]]) -> tuple[Scenario, str, random.Random]:
    """Returns command, fault and random numbers of an event: each pair once before any comes again."""
    cycle, position = divmod(number, len(pairs))
    order = random.Random(f"{seed} {cycle}").sample(list(pairs), len(pairs))
    return (*order[position], random.Random(f"{seed} {number}"))


def pairs_here(names: Sequence[str] | None) -> list[tuple[Scenario, str]]:
    """Returns commands and faults that this user can make."""
    root = os.geteuid() == 0
    chosen = [scenario for scenario in SCENARIOS if names is None or scenario.name in names]
    return [
        (scenario, fault)
        for scenario in chosen
        for fault in scenario.faults
        if root or not (needs_root(fault) or scenario.name == "two machines")
    ]


def table(events: Sequence[Event], key: str) -> str:
    """Returns a row for each command, or for each fault; commands that were not hit do not count."""
    events = [event for event in events if event.end != NOT_HIT]
    lines = [
        f"| {key} | tried | went on | ended by an error | ended with its launcher | lost | left something | "
        "seconds to the end, median (worst) |",
        "|---" * 8 + "|",
    ]
    for name in dict.fromkeys(sorted(getattr(event, key) for event in events)):
        mine = [event for event in events if getattr(event, key) == name]
        counts = [sum(event.end == end for event in mine) for end in ("went on", "error", "with its launcher", "lost")]
        errors = [event.seconds for event in mine if event.end == "error"]
        seconds = f"{statistics.median(errors):.1f} ({max(errors):.1f})" if errors else ""
        left = sum(bool(event.left) for event in mine)
        lines.append(f"| {name} | {len(mine)} | {' | '.join(map(str, counts))} | {left} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the events")
    parser.add_argument("--events", type=int, default=500, help="events in all, those in the file included")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no event after this long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[scenario.name for scenario in SCENARIOS], help="commands to hit")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    isolate()
    # The event under way ends its processes, and unmounts its disk.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    pairs, deadline = pairs_here(arguments.only), time.monotonic() + arguments.seconds
    documents = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    events = [Event(**{**document, "left": tuple(document["left"])}) for document in documents]
    with tempfile.TemporaryDirectory(prefix="faults-plan-") as name:
        folder = Path(name)
        places = Places(folder / "plan.json", folder / "profile.json", folder / "notebooks", output=folder)
        write_plan(places.plan, places.profile)
        write_notebooks(places.notebooks, places.plan)
        for number in sorted({*range(arguments.events)} - {event.number for event in events}):
            if time.monotonic() > deadline:
                break
            events.append(run(number, *drawn(number, arguments.seed, pairs), places))
            print(events[-1], file=sys.stderr, flush=True)
            text = json.dumps([asdict(event) for event in events], indent=1)
            serialization.write_text(text, arguments.output)
    print(table(events, "scenario"), table(events, "fault"), sep="\n\n")


if __name__ == "__main__":
    main()
