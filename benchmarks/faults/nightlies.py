"""What becomes of three nightly runs that are started at once in one folder, and of the folder when one is killed?

    python benchmarks/faults/nightlies.py -o nightlies.json --rounds 20     # Linux

In each round three commands with the same folder are started at once: one of them writes, and the others must end by an
error of one line. At a random moment the one that writes is killed, with all that it started, and three are started
again: one of them must finish, and the folder must hold a run for each that finished, with each notebook once.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from job import write_plan
from left_behind import MARK, processes, wait_for
from scenarios import DEEPPOOL, HERE
from small_notebooks import BODIES, write_notebooks

from deeppool.base import serialization
from deeppool.evaluation.archive import NightlyArchive

AT_ONCE = 3
LATEST = 40.0
"""When the one that writes is killed at the latest, in seconds after the others have ended."""
LIMIT = 300.0
REFUSAL = "another nightly writes to"


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one folder."""

    number: int
    killed_after: float
    """Seconds after the others had ended; 0: it had finished before."""
    refused: int
    """Commands that ended by one line of error because another one wrote."""
    refusal_seconds: float
    """Median seconds from their start to their end."""
    went_on: bool
    """Whether a second command went on with the run of the killed one; False, too, if that had finished no notebook."""
    why: str
    """What was wrong; empty: nothing."""


@dataclass(slots=True)
class Command:
    """One nightly run."""

    process: "subprocess.Popen[bytes]"
    errors: Path
    started: float
    ended: float = 0.0

    def over(self) -> bool:
        """Whether it has ended; notes when."""
        if self.process.poll() is not None and not self.ended:
            self.ended = time.monotonic()
        return bool(self.ended)

    def refused(self) -> bool:
        """Whether it ended by one line of error because another one writes."""
        lines = [line for line in self.errors.read_text().splitlines() if line.startswith("error: ")]
        return self.process.returncode == 1 and len(lines) == 1 and REFUSAL in lines[0]


def start(nights: Path, notebooks: Path, folder: Path, mark: str) -> list[Command]:
    """Starts all commands."""
    commands = []
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    for _ in range(AT_ONCE):
        errors = folder / f"errors-{time.monotonic_ns()}"
        process = subprocess.Popen(
            [*DEEPPOOL, "nightly", "--quick", "--notebooks", notebooks, "-o", nights],
            stdout=subprocess.DEVNULL,
            stderr=errors.open("w"),
            env={**os.environ, MARK: mark, "PYTHONPATH": paths, "XDG_STATE_HOME": str(folder / "state")},
            cwd=HERE,
            process_group=0,
        )
        commands.append(Command(process, errors, time.monotonic()))
    return commands


def run(number: int, seed: int, notebooks: Path) -> Round:
    """Makes one round."""
    draw = random.Random(f"{seed} {number}")
    with tempfile.TemporaryDirectory(prefix="nights-") as name:
        folder, nights, mark = Path(name), Path(name) / "nights", f"{os.getpid()}-{number}"
        try:
            first = start(nights, notebooks, folder, mark)
            if not wait_for(lambda: sum(command.over() for command in first) >= AT_ONCE - 1, LIMIT):
                return Round(number, 0.0, 0, 0.0, went_on=False, why="the first commands do not end")
            after = draw.uniform(0.0, LATEST)
            wait_for(lambda: all(command.over() for command in first), after)
            killed = not all(command.over() for command in first)
            for process in processes(mark):
                process.send_signal(signal.SIGKILL)
            wait_for(lambda: all(command.over() for command in first) and not processes(mark), LIMIT)
            archive = NightlyArchive(nights)
            unfinished = archive.load_unfinished()
            # A run without a finished notebook begins anew.
            begun = unfinished if unfinished is not None and unfinished.outcomes else None
            second = start(nights, notebooks, folder, mark)
            if not wait_for(lambda: all(command.over() for command in second), LIMIT):
                return Round(number, after, 0, 0.0, went_on=False, why="the second commands do not end")
            refused = [command for command in (*first, *second) if command.refused()]
            why = _what_is_wrong(archive, first, second)
            seconds = statistics.median(command.ended - command.started for command in refused) if refused else 0.0
            went_on = begun is not None and begun.started in {found.started for found in archive.runs()}
            if begun is not None and not went_on:
                why = why or "the run that was killed was not continued"
            return Round(number, after if killed else 0.0, len(refused), seconds, went_on, why)
        finally:
            for process in processes(mark):
                process.kill()


def _what_is_wrong(archive: NightlyArchive, first: list[Command], second: list[Command]) -> str:
    """Returns what is not as it must be; empty: nothing."""
    odd = [
        f"exit code {command.process.returncode}: {command.errors.read_text()[-300:]}"
        for command in (*first, *second)
        if command.process.returncode not in (0, -signal.SIGKILL) and not command.refused()
    ]
    finished = [command for command in second if command.process.returncode == 0]
    runs = archive.runs()
    if odd:
        return odd[0]
    if not finished:
        return "no second command finished"
    notebooks = [sorted(outcome.name for outcome in found.outcomes) for found in runs]
    if any(names != sorted(name.partition("-")[2] for name in BODIES) for names in notebooks):
        return f"the runs in the folder have the notebooks {notebooks}"
    # One that starts when another one has finished makes a run of its own, and one may be killed after its run.
    whole = len(finished) + sum(command.process.returncode == 0 for command in first)
    most = whole + sum(command.process.returncode == -signal.SIGKILL for command in first)
    return "" if whole <= len(runs) <= most else f"{whole} commands finished, the folder has {len(runs)} runs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of the rounds")
    parser.add_argument("--rounds", type=int, default=20, help="rounds in all, those in the file included")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # What runs ends its processes, and removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = [Round(**each) for each in json.loads(arguments.output.read_text())] if arguments.output.exists() else []
    with tempfile.TemporaryDirectory(prefix="nights-plan-") as name:
        plan, notebooks = Path(name) / "plan.json", Path(name) / "notebooks"
        write_plan(plan, plan.with_name("profile.json"))
        write_notebooks(notebooks, plan)
        for number in range(len(rounds), arguments.rounds):
            rounds.append(run(number, arguments.seed, notebooks))
            print(rounds[-1], file=sys.stderr, flush=True)
            serialization.write_text(json.dumps([asdict(each) for each in rounds], indent=1), arguments.output)
    wrong = [each for each in rounds if each.why]
    print(
        f"{len(rounds)} rounds: {sum(each.refused for each in rounds)} commands refused, after "
        f"{statistics.median(each.refusal_seconds for each in rounds):.1f} s; "
        f"{sum(each.killed_after > 0 for each in rounds)} killed; {len(wrong)} wrong"
    )


if __name__ == "__main__":
    main()
