"""Do the tests notice when the code is wrong?

    python benchmarks/mutation/main.py -o mutation.json --mutants 60

Mutants are drawn at random among the comparisons, arithmetic and boolean operators, integer constants and conditions
of the planner, the scheduling policies, the collectives and the readers of files. Each is tried in a
copy of the package: first the tests of the same name as the module, then those of its folder, until one fails.
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

CHECKOUT = Path(__file__).resolve().parents[2]
AREAS = {
    "planner": ["deeppool/planning/search", "deeppool/planning/evaluate"],
    "policies": ["deeppool/scheduling"],
    "collectives": ["deeppool/collectives"],
    "readers": ["deeppool/base/serialization.py", "deeppool/graph/layer.py", "deeppool/cluster", "deeppool/records"],
}
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
    number: int
    """Of the places of the module that can be changed."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests said to a mutant."""

    mutant: Mutant
    outcome: str
    """``killed``, ``survived``, or ``not finished`` in time."""
    seconds: float


def main() -> None:
    """Tries mutants and prints how many were killed, by area, and those that survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file; a second call goes on with it")
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds of the tests of one mutant")
    arguments = parser.parse_args()
    drawn = draw(arguments.mutants, arguments.seed)
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    results = [Result(Mutant(**each.pop("mutant")), **each) for each in known]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("deeppool", "tests", "benchmarks", "notebooks", "docs", "examples"):
            shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(CHECKOUT / "pyproject.toml", copy)
        for mutant in drawn[len(results) :]:
            results.append(tried(mutant, copy, arguments.timeout))
            print(
                f"{len(results)}/{len(drawn)} {results[-1].outcome}: {described(mutant)}", file=sys.stderr, flush=True
            )
            arguments.output.write_text(json.dumps([asdict(result) for result in results], indent=1))
    print(table(results))


def draw(count: int, seed: int) -> list[Mutant]:
    """Returns mutants by turns of the areas; within one every place is as likely as any other."""
    places = {area: [mutant for module in modules(area) for mutant in mutants(area, module)] for area in AREAS}
    for area, found in places.items():
        random.Random(f"{seed} {area}").shuffle(found)
    return [places[area][turn] for turn in range(-(-count // len(AREAS))) for area in AREAS][:count]


def modules(area: str) -> Iterator[Path]:
    """Yields the modules of an area."""
    for name in AREAS[area]:
        path = CHECKOUT / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def mutants(area: str, module: Path) -> list[Mutant]:
    """Returns every mutant of a module."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    found = []
    for number, (node, changed) in enumerate(places(tree)):
        before = first_line(node)
        with changed:
            after = first_line(node)
        found.append(Mutant(area, str(module.relative_to(CHECKOUT)), node.lineno, number, before, after))
    return found


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


def tried(mutant: Mutant, copy: Path, timeout: float) -> Result:
    """Changes the module in the copy, runs its tests until one fails, and changes it back."""
    module = copy / mutant.module
    original = module.read_text(encoding="utf-8")
    tree = ast.parse(original)
    _, change = next(each for number, each in enumerate(places(tree)) if number == mutant.number)
    with change:
        module.write_text(ast.unparse(tree), encoding="utf-8")
    started = time.monotonic()
    try:
        outcome = "survived"
        for tests in suites(mutant.module, copy):
            left = timeout - (time.monotonic() - started)
            if left <= 0 or outcome != "survived":
                break
            outcome = outcome_of(tests, copy, left)
    finally:
        module.write_text(original, encoding="utf-8")
    return Result(mutant, outcome, round(time.monotonic() - started, 1))


def suites(module: str, copy: Path) -> Iterator[list[str]]:
    """Yields the test files of a module: those of its name, then the others of its folder."""
    path = Path(module)
    folder = copy / "tests" / path.parent.relative_to("deeppool")
    while not folder.is_dir():
        folder = folder.parent
    own = folder / f"test_{path.stem}.py"
    if own.exists():
        yield [str(own)]
    others = [str(each) for each in sorted(folder.glob("test_*.py")) if each != own]
    if others:
        yield others


def outcome_of(tests: list[str], copy: Path, timeout: float) -> str:
    """Returns what the tests say to the copy as it is."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not stress", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return "not finished"
    # 5: the file has no test but those that were left out.
    return "survived" if code in (0, 5) else "killed"


def described(mutant: Mutant) -> str:
    """Returns where a mutant is and what it changes."""
    return f"{mutant.module}:{mutant.line}: {mutant.before} → {mutant.after}"


def table(results: list[Result]) -> str:
    """Returns how many mutants were killed, by area, and those that were not."""
    lines = ["| area | mutants | killed | survived | not finished |", "|---|---|---|---|---|"]
    for area in AREAS:
        outcomes = [result.outcome for result in results if result.mutant.area == area]
        told = " | ".join(str(outcomes.count(kind)) for kind in ("killed", "survived", "not finished"))
        lines.append(f"| {area} | {len(outcomes)} | {told} |")
    lines += [f"{result.outcome}: {described(result.mutant)}" for result in results if result.outcome != "killed"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
