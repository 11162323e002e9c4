"""What counts as survived and what as lost: commands whose end is known, hit for real."""

import importlib
import os
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from deeppool.device.cpu import usable_cores

FOLDER = Path(__file__).parents[2] / "benchmarks" / "faults"
MODULES = ("event", "faults", "job", "left_behind", "main", "scenarios", "small_notebooks")

UNTIL_IT_IS_HIT = "import os, time\nwhile not os.path.exists('{hit}'): time.sleep(0.01)\n"
RAISES = UNTIL_IT_IS_HIT + "1 / 0"
ONE_LINE = UNTIL_IT_IS_HIT + "print('error: the disk is full')"
FOREVER = "import threading; threading.Event().wait()"
CHILD = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module of one event, after which a command goes on; those beside it are imported by their bare names."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module("event")
    monkeypatch.setattr(found, "START_SECONDS", 0.1)
    monkeypatch.setattr(found, "LATEST", 0.2)
    monkeypatch.setattr(found, "GONE_SECONDS", 60.0)
    monkeypatch.setattr(found, "slowness", lambda: 1.0)
    found.HIT = tmp_path / "hit"
    strike = found._strike

    def strike_and_say_so(*arguments: object) -> object:
        try:
            return strike(*arguments)
        finally:
            found.HIT.touch()

    monkeypatch.setattr(found, "_strike", strike_and_say_so)
    yield found
    for name in MODULES:
        sys.modules.pop(name, None)


def hit(benchmark: ModuleType, source: str, fault: str, seed: int = 0):
    benchmark.HIT.unlink(missing_ok=True)
    source = source.replace("{hit}", str(benchmark.HIT))
    scenario = benchmark.Scenario("a command", lambda places: (sys.executable, "-c", source))
    places = benchmark.Places(Path("plan.json"), Path("profile.json"), Path("notebooks"), Path())
    return benchmark.run(0, scenario, fault, random.Random(seed), places)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("source", "fault", "end", "why"),
    [
        (UNTIL_IT_IS_HIT, "stop", "went on", ""),
        (FOREVER, "kill", "with its launcher", ""),
        (ONE_LINE, "none", "went on", ""),
        (RAISES, "none", "lost", "exit code 1 with 0 lines of error and 1 tracebacks"),
    ],
    ids=["stopped", "killed", "ended", "raised"],
)
def test_the_end_of_a_command_is_what_it_did(benchmark, source: str, fault: str, end: str, why: str) -> None:
    benchmark.LAUNCHER_STOPPED = 0.2
    event = hit(benchmark, source, fault)
    assert (event.end, event.why, event.left) == (end, why, ())
    assert event.victim == ("launcher" if fault in ("stop", "kill") else "")


def test_memory_that_another_process_makes_after_the_last_look_is_not_left(benchmark, monkeypatch, tmp_path) -> None:
    looks = iter([{"left"}, set(), {"another's"}])
    monkeypatch.setattr(benchmark, "shared_memory", lambda: next(looks))
    assert benchmark._left("no such mark", tmp_path / "absent", set(), 10.0) == ()


@pytest.mark.processes
def test_one_line_of_error_and_exit_code_1_is_a_clear_end(benchmark) -> None:
    ends = UNTIL_IT_IS_HIT + "import sys; print('error: full', file=sys.stderr); sys.exit(1)"
    event = hit(benchmark, ends, "none")
    assert (event.end, event.said) == ("error", "error: full")


@pytest.mark.slow
@pytest.mark.processes
def test_a_command_that_never_ends_or_leaves_a_process_is_lost(benchmark) -> None:
    benchmark.LIMIT = 1.0
    hangs = hit(benchmark, FOREVER, "none")
    assert (hangs.end, hangs.why) == ("lost", "still there after 1 s")
    benchmark.LIMIT, benchmark.GONE_SECONDS = 60.0, 1.0
    orphaned = hit(benchmark, CHILD.format(child=FOREVER) + UNTIL_IT_IS_HIT, "none")
    assert (orphaned.end, orphaned.why) == ("lost", "left something behind")
    assert "threading.Event().wait()" in orphaned.left[0]


@pytest.mark.slow
@pytest.mark.processes
def test_a_limited_process_runs_out_of_memory(benchmark) -> None:
    grows = UNTIL_IT_IS_HIT + "kept = [bytearray(2**20) for _ in range(200)]"
    assert "MemoryError" in hit(benchmark, grows, "out of memory").said
    assert hit(benchmark, grows, "none").end == "went on"


@pytest.mark.processes
def test_the_wall_clock_of_a_command_jumps_and_no_other_does(benchmark) -> None:
    source = """
import sys, time
wall, passed = time.time(), time.monotonic()
while abs(time.time() - wall) < 1800 and time.monotonic() - passed < 300:
    time.sleep(0.01)
print(f"error: {abs(time.time() - wall - (time.monotonic() - passed)):.0f}", file=sys.stderr)
sys.exit(1)
"""
    assert hit(benchmark, source, "clock jump").said == "error: 3600"


LOSES_ITS_CORE = """
import os, subprocess, sys
cores = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cores)
pin = "import os; os.sched_setaffinity(0, {core}); import time; time.sleep(200)"
rank = subprocess.Popen([sys.executable, "-c", pin.format(core=cores[1:]), "deeppool.execution.worker"])
other = subprocess.Popen([sys.executable, "-c", pin.format(core=cores[:1]), "another"])
code, left = rank.wait(), os.sched_getaffinity(0)
other.kill()
print("error:", code, left == {cores[0]}, other.wait(), file=sys.stderr)
sys.exit(1)
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs a core to lose")
def test_a_lost_gpu_is_a_core_of_the_launcher_and_the_rank_there(benchmark) -> None:
    # By then they are on their cores.
    benchmark.START_SECONDS, benchmark.LATEST = 4.0, 4.1
    event = hit(benchmark, LOSES_ITS_CORE, "lost GPU")
    assert (event.end, event.victim, event.said) == ("error", "execution.worker", "error: -9 True -9")


def test_all_is_given_more_time_on_a_busy_machine(benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, expected in ((0.5, 1.0), (5.0, 2.5), (100.0, 4.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert benchmark.slowness() == expected


def test_each_pair_comes_once_before_any_comes_again_and_the_seed_repeats_it(benchmark) -> None:
    main = importlib.import_module("main")
    pairs = main.pairs_here(None)
    names = [
        (scenario.name, fault)
        for scenario, fault, _ in (main.drawn(number, 1, pairs) for number in range(2 * len(pairs)))
    ]
    assert (
        sorted(names[: len(pairs)]) == sorted(names[len(pairs) :]) == sorted((one.name, fault) for one, fault in pairs)
    )
    assert names[: len(pairs)] != names[len(pairs) :]
    assert [main.drawn(5, 1, pairs)[2].random(), main.drawn(5, 1, pairs)[2].random()] == [
        main.drawn(5, 1, pairs)[2].random()
    ] * 2


def test_the_table_counts_ends_and_leaves_out_what_came_not_hit(benchmark) -> None:
    main = importlib.import_module("main")
    ends = [("error", 2.0), ("error", 4.0), ("lost", 9.0), (benchmark.NOT_HIT, 0.0), ("went on", 1.0)]
    events = [
        benchmark.Event(number, "run", "kill", "launcher", 1.0, end, seconds, "", ("process",) if end == "lost" else ())
        for number, (end, seconds) in enumerate(ends)
    ]
    assert main.table(events, "scenario").splitlines()[-1] == "| run | 4 | 1 | 2 | 0 | 1 | 1 | 3.0 (4.0) |"
