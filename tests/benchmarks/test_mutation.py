"""Which tests a mutant is tried on, and what they say to it: a package of one module with one test that looks."""

import importlib
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from coverage import CoverageData

LOOPS = """\
import time

def rounds(count):
    while count > 0:
        time.sleep(0.001)
        count = count - 1
"""
MODULE = """\
BOUND = 3


def within(value):
    return value < BOUND and not (
        value < 0
    )


def never(value):
    if value > 7:
        return 1
    return 0
"""
TESTS = """\
from deeppool.scheduling.pace import within


def test_bounds():
    assert within(2)
    assert not within(3)


def test_calls():
    within(1)
"""
OWN, OTHER = "tests/scheduling/test_pace.py", "tests/scheduling/test_all.py"


@pytest.fixture
def mutation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "mutation"))
    monkeypatch.delitem(sys.modules, "main", raising=False)
    found = importlib.import_module("main")
    monkeypatch.setattr(found, "CHECKOUT", tmp_path)
    monkeypatch.setattr(found, "AREAS", {"policies": ["deeppool/scheduling"]})
    for path, text in (("deeppool/scheduling/pace.py", MODULE), (OWN, TESTS), (OTHER, TESTS)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    for package in ("deeppool", "deeppool/scheduling"):
        (tmp_path / package / "__init__.py").touch()
    yield found
    sys.modules.pop("main", None)


@pytest.fixture
def covered(tmp_path: Path) -> CoverageData:
    data = CoverageData(str(tmp_path / "coverage.db"))
    for context, lines in (
        ("", [1, 4, 10]),
        (f"{OTHER}::test_calls", [5, 6]),
        (f"{OWN}::test_calls[0]", [5, 6]),
        (f"{OWN}::test_calls[1]", [5, 6]),
        ("tests/cli/test_run.py::test_run", [5]),
    ):
        data.set_context(context)
        data.add_lines({str(tmp_path / "deeppool/scheduling/pace.py"): lines})
    return data


def test_each_operator_and_constant_is_a_mutant_with_the_lines_of_its_statement(mutation) -> None:
    found = {(each.line, each.lines, each.before, each.after) for each in mutation.draw(100, seed=0)}
    assert found == {
        (1, (1, 1), "3", "4"),
        (5, (5, 7), "value < BOUND and (not value < 0)", "value < BOUND or not value < 0"),
        (5, (5, 7), "value < BOUND", "value <= BOUND"),
        (6, (5, 7), "value < 0", "value <= 0"),
        (6, (5, 7), "0", "1"),
        (11, (11, 11), "value > 7", "value >= 7"),
        (11, (11, 11), "7", "8"),
        (12, (12, 12), "1", "2"),
        (13, (13, 13), "0", "1"),
    }


def test_the_tests_of_a_mutant_are_all_that_run_its_statement_those_beside_the_module_first(mutation, covered) -> None:
    by_line = {each.line: mutation.tests_of(each, covered) for each in mutation.draw(100, seed=0)}
    all_tests = [f"{OWN}::test_calls", f"{OTHER}::test_calls", "tests/cli/test_run.py::test_run"]
    # Line 1 runs on import only: whatever runs something of the module may notice.
    assert by_line == {1: all_tests, 5: all_tests, 6: all_tests, 11: [], 12: [], 13: []}


@pytest.mark.processes
def test_a_mutant_is_killed_by_a_test_that_fails_and_the_module_is_as_it_was(mutation, tmp_path: Path) -> None:
    mutant = next(each for each in mutation.draw(100, seed=0) if each.after == "value <= BOUND")
    for tests, outcome in (([f"{OWN}::test_calls"], "survived"), ([f"{OWN}::test_bounds"], "killed"), ([], "not run")):
        assert mutation.tried(mutant, tmp_path, tests, timeout=300.0).outcome == outcome
    assert mutation.tried(mutant, tmp_path, [f"{OWN}::test_calls"], timeout=0.01).outcome == "not finished"
    assert (tmp_path / mutant.module).read_text() == MODULE


@pytest.mark.slow
@pytest.mark.processes
def test_a_mutant_that_makes_a_loop_endless_is_killed_if_its_tests_are_far_from_the_limit(
    mutation, tmp_path: Path
) -> None:
    (tmp_path / "deeppool/scheduling/loops.py").write_text(LOOPS)
    test = f"{OWN}::test_rounds"
    (tmp_path / OWN).write_text("from deeppool.scheduling.loops import rounds\n\ndef test_rounds():\n    rounds(3)\n")
    mutant = next(each for each in mutation.draw(100, seed=0) if each.after == "count + 1")
    # pytest starts in a second, but a busy machine takes longer.
    began = time.monotonic()
    assert mutation.outcome_of([test], tmp_path, 300.0) == "survived"
    mutation.ENDLESS = 1.0
    assert mutation.tried(mutant, tmp_path, [test], timeout=5 * (time.monotonic() - began)).outcome == "endless"
    mutation.ENDLESS = 1e6
    assert mutation.tried(mutant, tmp_path, [test], timeout=2.0).outcome == "not finished"
