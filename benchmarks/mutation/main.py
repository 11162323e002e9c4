"""Do the tests notice when the code is wrong?

    python benchmarks/mutation/cover.py -o coverage.db
    python benchmarks/mutation/main.py -o mutation.json --coverage coverage.db --mutants 60

Mutants are drawn at random among the comparisons, arithmetic and boolean operators, integer constants and conditions
of the planner, the scheduling policies, the collectives and the readers of files. Each is tried in a copy of the
package with all tests that run its line, those of the module's own file and folder first, until one fails.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coverage import CoverageData

CHECKOUT = Path(__file__).resolve().parents[2]
AREAS = {
    "planner": ["deeppool/planning/search", "deeppool/planning/evaluate"],
    "policies": ["deeppool/scheduling"],
    "collectives": ["deeppool/collectives"],
    "readers": ["deeppool/base/serialization.py", "deeppool/graph/layer.py", "deeppool/cluster", "deeppool/records"],
}
OUTCOMES = ("killed", "endless", "survived", "not run", "not finished")
ENDLESS = 10.0
"""How many times longer than without it the tests of a mutant take at least that has made a loop endless."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    area: str
    module: str
    """Path from the checkout."""
    line: int
    lines: tuple[int, int]
    """First and last line of its statement, without the statements in it."""
    number: int
    """Of the places of the module that can be changed."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests said to a mutant."""

    mutant: Mutant
    outcome: str
    """``killed``, ``endless`` (which counts as killed), ``survived``, ``not finished`` in time, or ``not run``: no test
    runs the line."""
    tests: int
    """Tests that run it."""
    seconds: float


def main() -> None:
    """Tries mutants and prints how many were killed, by area, and those that survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file; a second call goes on with it")
    parser.add_argument("--coverage", type=Path, required=True, help="which test runs which line (cover.py)")
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of the tests of one mutant")
    arguments = parser.parse_args()
    covered = CoverageData(str(arguments.coverage))
    covered.read()
    drawn = draw(arguments.mutants, arguments.seed)
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    results = [Result(mutant_of(each.pop("mutant")), **each) for each in known]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("deeppool", "tests", "benchmarks", "notebooks", "docs", "examples"):
            shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(CHECKOUT / "pyproject.toml", copy)
        for mutant in drawn[len(results) :]:
            results.append(tried(mutant, copy, tests_of(mutant, covered), arguments.timeout))
            print(
                f"{len(results)}/{len(drawn)} {results[-1].outcome}: {described(mutant)}", file=sys.stderr, flush=True
            )
            arguments.output.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print(table(results))


def mutant_of(document: dict[str, Any]) -> Mutant:
    """Returns a mutant of the file of an earlier call."""
    return Mutant(**{**document, "lines": tuple(document["lines"])})


def draw(count: int, seed: int) -> list[Mutant]:
    """Returns mutants by turns of the areas; within one every place is as likely as any other."""
    places = {area: [mutant for module in modules(area) for mutant in mutants(area, module)] for area in AREAS}
    for area, found in places.items():
        random.Random(f"{seed} {area}").shuffle(found)
    return [found[turn] for turn in range(count) for found in places.values() if turn < len(found)][:count]


def modules(area: str) -> Iterator[Path]:
    """Yields the modules of an area."""
    for name in AREAS[area]:
        path = CHECKOUT / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def mutants(area: str, module: Path) -> list[Mutant]:
    """Returns every mutant of a module."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found, statements = [], [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for number, (node, changed) in enumerate(places(tree)):
        before = first_line(node)
        with changed:
            after = first_line(node)
        lines = statement_lines(node, statements)
        found.append(Mutant(area, str(module.relative_to(CHECKOUT)), node.lineno, lines, number, before, after))
    return found


def statement_lines(node: ast.expr | ast.stmt, statements: list[ast.stmt]) -> tuple[int, int]:
    """Returns the lines of the innermost statement around a node, without the statements in that."""
    around = [each for each in statements if first_of(each) <= node.lineno <= (each.end_lineno or each.lineno)]
    inner = min(around, key=lambda each: (each.end_lineno or each.lineno) - first_of(each))
    body = getattr(inner, "body", None)
    return first_of(inner), body[0].lineno - 1 if body else inner.end_lineno or inner.lineno


def first_of(statement: ast.stmt) -> int:
    """Returns the first line of a statement, its decorators included."""
    return min(each.lineno for each in (statement, *getattr(statement, "decorator_list", ())))


def first_line(node: ast.AST) -> str:
    """Returns the source of a node, of a statement its first line."""
    return ast.unparse(node).splitlines()[0]


class Change:
    """A change of one attribute of a node, within a ``with`` block."""

    def __init__(self, node: ast.AST, name: str, value: object) -> None:
        """Takes the attribute and its value within the block."""
        self._node, self._name, self._values = node, name, (getattr(node, name), value)

    def __enter__(self) -> None:
        setattr(self._node, self._name, self._values[1])

    def __exit__(self, *_: object) -> None:
        setattr(self._node, self._name, self._values[0])


def places(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, Change]]:
    """Yields the nodes that can be changed, with their change."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[operator, *others]) if type(operator) in COMPARISONS:
                yield node, Change(node, "ops", [COMPARISONS[type(operator)](), *others])
            case ast.BinOp(op=operator) if type(operator) in OPERATORS and not _is_text(node):
                yield node, Change(node, "op", OPERATORS[type(operator)]())
            case ast.BoolOp(op=operator):
                yield node, Change(node, "op", ast.Or() if isinstance(operator, ast.And) else ast.And())
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                yield node, Change(node, "value", value + 1)
            case ast.IfExp(test=test):
                yield node, Change(node, "test", ast.UnaryOp(ast.Not(), test))
            case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() | ast.UnaryOp() as test):
                # Comparisons in conditions are changed above.
                yield node, Change(node, "test", ast.UnaryOp(ast.Not(), test))


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operator formats or joins text."""
    return any(
        isinstance(inner, ast.JoinedStr) or isinstance(getattr(inner, "value", None), str) for inner in ast.walk(node)
    )


def tests_of(mutant: Mutant, covered: CoverageData) -> list[str]:
    """Returns the tests that run the statement of a mutant; of one that only imports run, those that run its module."""
    (file,) = [file for file in covered.measured_files() if file.endswith(f"/{mutant.module}")] or [""]
    by_line = covered.contexts_by_lineno(file) if file else {}
    first, last = mutant.lines
    contexts = {test for line in range(first, last + 1) for test in by_line.get(line, ())}
    if "" in contexts:
        contexts |= {test for tests in by_line.values() for test in tests}
    # With all their parameters: which there are may depend on the mutant.
    found = {test.partition("[")[0] for test in contexts if test}
    path = Path(mutant.module)
    folder = Path("tests", *path.parent.parts[1:])

    def order(test: str) -> tuple[bool, bool, str]:
        file = Path(test.partition("::")[0])
        return file != folder / f"test_{path.stem}.py", not file.is_relative_to(folder), test

    return sorted(found, key=order)


def tried(mutant: Mutant, copy: Path, tests: list[str], timeout: float) -> Result:
    """Changes the module in the copy, runs its tests until one fails, and changes it back."""
    module = copy / mutant.module
    original = module.read_text(encoding="utf-8")
    tree = ast.parse(original)
    _, change = next(each for number, each in enumerate(places(tree)) if number == mutant.number)
    missing = [test for test in tests if f"def {test.split('::')[-1]}(" not in (copy / test.split("::")[0]).read_text()]
    if missing:
        raise SystemExit(f"there is no {missing[0]}: make the coverage file again")
    with change:
        module.write_text(ast.unparse(tree), encoding="utf-8")
    started = time.monotonic()
    try:
        outcome = outcome_of(tests, copy, timeout) if tests else "not run"
    finally:
        module.write_text(original, encoding="utf-8")
    seconds = round(time.monotonic() - started, 1)
    if outcome == "not finished" and outcome_of(tests, copy, timeout / ENDLESS) == "survived":
        outcome = "endless"
    return Result(mutant, outcome, len(tests), seconds)


def outcome_of(tests: list[str], copy: Path, timeout: float) -> str:
    """Returns what the tests say to the copy as it is."""
    # More than a command line may hold.
    listed = copy / "tests-of-the-mutant.txt"
    listed.write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"@{listed}"]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return "not finished"
    return "survived" if code == 0 else "killed"


def described(mutant: Mutant) -> str:
    """Returns where a mutant is and what it changes."""
    return f"{mutant.module}:{mutant.line}: {mutant.before} → {mutant.after}"


def table(results: list[Result]) -> str:
    """Returns how many mutants were killed, by area, and those that were not."""
    lines = ["| area | mutants | killed | endless | survived | run by no test | not finished |", "|---" * 7 + "|"]
    for area in AREAS:
        outcomes = [result.outcome for result in results if result.mutant.area == area]
        told = " | ".join(str(outcomes.count(kind)) for kind in OUTCOMES)
        lines.append(f"| {area} | {len(outcomes)} | {told} |")
    lines += [
        f"{result.outcome}: {described(result.mutant)}" for result in results if result.outcome not in OUTCOMES[:2]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
