"""The commands that faults hit: each ends by itself after some seconds, but for a service."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import LOST_GPU

HERE = Path(__file__).parent
DEEPPOOL = (
    sys.executable,
    "-c",
    # What a shell has put into the background ignores Ctrl-C.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from deeppool.cli import main; main()",
)
STEPS = 3000
ON_PROCESSES = ("kill", "stop", "out of memory")
ON_DISKS = ("full disk", "read-only output")
EVERYWHERE = (*ON_PROCESSES, *ON_DISKS, "clock jump")


@dataclass(frozen=True, slots=True)
class Places:
    """Files and folders of one event."""

    plan: Path
    profile: Path
    """What the plan was made from."""
    notebooks: Path
    output: Path
    steps: int = STEPS
    """Of a training."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One command."""

    name: str
    command: Callable[[Places], Sequence[object]]
    faults: tuple[str, ...] = EVERYWHERE
    service: bool = False
    """Whether it runs until it is ended, as JupyterLab does."""
    spared: tuple[str, ...] = ()
    """Kinds of processes that no fault hits."""
    report: str = ""
    """Pattern of a report in the output folder that stands for a line of error."""
    foreign: bool = False
    """Whether the command is torchrun, whose messages are its own."""


def _technique(name: str, faults: tuple[str, ...] = EVERYWHERE, spared: tuple[str, ...] = ()) -> Scenario:
    script = HERE / "technique.py"
    return Scenario(
        name,
        lambda places: (sys.executable, script, name, places.plan, places.output, places.steps),
        faults=faults,
        spared=spared,
    )


def _train(*more: str, fewer: bool = False) -> Callable[[Places], Sequence[object]]:
    return lambda places: (
        *(*DEEPPOOL, "train", places.plan, "job:job", "--steps", places.steps, "--checkpoints", places.output / "kept"),
        *("--checkpoint-every", 200, "-o", places.output / "training.json", *more),
        *(("--min-ranks", 1, "--profile", places.profile) if fewer else ()),
    )


SCENARIOS = (
    Scenario(
        "run",
        lambda places: (
            *(*DEEPPOOL, "run", places.plan, "--background", "job:net", "--seconds", 6),
            *("-o", places.output / "run.json"),
        ),
    ),
    Scenario("train", _train()),
    Scenario("train, restarts", _train("--restarts", "3")),
    Scenario("train, fewer ranks", _train("--restarts", "3", fewer=True), faults=(*EVERYWHERE, LOST_GPU)),
    _technique("eager-SGD"),
    _technique("Caramel"),
    _technique("two waves"),
    _technique("crossover"),
    Scenario(
        "rotating partitions",
        lambda places: (
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2),
            # Its own logs stay behind in the temporary folder otherwise.
            *("--log-dir", places.output / "logs"),
            *(HERE / "technique.py", "rotating partitions", places.plan, places.output, places.steps // 6),
        ),
        faults=("kill", "out of memory", "clock jump"),
        foreign=True,
    ),
    # Ray outlives the command that started it, as a cluster should.
    _technique("cluster", ("kill", "stop", "out of memory"), spared=("launcher",)),
    # The launcher makes the namespaces and removes them.
    _technique("two machines", ("partition", "kill"), spared=("launcher",)),
    Scenario(
        "profile",
        lambda places: (
            *(*DEEPPOOL, "profile", "squeezenet1_1", "--device", "cpu", "--input-shape", "3,64,64"),
            *("--batch-sizes", "1,2,4,8", "-o", places.output / "profile.json"),
        ),
    ),
    Scenario(
        "nightly",
        lambda places: (
            *(*DEEPPOOL, "nightly", "--quick", "--notebooks", places.notebooks, "-o", places.output / "nights"),
            "--json",
        ),
        report="nights/*/verdict.json",
    ),
    Scenario(
        "lab",
        lambda places: (*DEEPPOOL, "lab", places.output / "lab", "--no-browser", "--port", 28765),
        faults=("kill", "stop", "read-only output", "clock jump"),
        service=True,
    ),
)
