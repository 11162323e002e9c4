"""The shape of the package: who may import whom, and what `import deeppool` offers."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import deeppool

PACKAGE = Path(deeppool.__file__).parent

# From the vocabulary up to the surfaces, as in the docstring of deeppool. A unit (a module or package right
# under deeppool) imports from the rows below, and in its own row from what stands left of a "<".
# Between units joined by "|" there are no imports in either direction.
ROWS = (
    "errors < units < job",  # vocabulary
    "base",
    "cluster | device < telemetry | processes",  # platform
    "records",
    "graph < training < collectives < profiling < costs",  # facts
    "planning < scheduling",  # decisions
    "simulation | execution < collocation < interleaving",  # systems
    "figures",  # views
    "runs < coordinator",
    "widgets < evaluation < cli",  # surfaces
)
HEIGHTS = {
    unit.strip(): (row, step)
    for row, text in enumerate(ROWS)
    for step, units in enumerate(text.split("<"))
    for unit in units.split("|")
}
FACADE = "deeppool"
"""deeppool/__init__.py: it loads any row when a name is used, so only the surfaces may import it whole."""


def unit_of(module: str) -> str:
    """``deeppool.graph.layer`` belongs to ``graph``; a public name of deeppool to the unit that is its home."""
    home = deeppool._HOMES.get(module.removeprefix("deeppool."), module)
    parts = (module if home == "deeppool" else home).split(".")
    return parts[1] if len(parts) > 1 else FACADE


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each import of deeppool that runs, inside functions too; type checkers' imports do not run."""
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "deeppool":
            names = [f"deeppool.{alias.name}" for alias in node.names if alias.name != "__version__"]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "deeppool")


def broken_rules(unit: str, source: str) -> list[str]:
    """The imports in a module of ``unit`` that point up or across."""
    broken = []
    for line, module in imported_modules(source):
        target = unit_of(module)
        if target == FACADE:
            allowed = HEIGHTS[unit][0] == len(ROWS) - 1
        else:
            allowed = target == unit or HEIGHTS[target] < HEIGHTS[unit]
        if not allowed:
            broken.append(f"line {line}: {unit} imports {module}")
    return broken


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def unit_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down_or_left(path: Path) -> None:
    assert broken_rules(unit_of_file(path), path.read_text(encoding="utf-8")) == []


def test_every_module_has_its_place_in_a_row() -> None:
    assert {unit_of_file(path) for path in SOURCES} - set(HEIGHTS) == set()


# The rules themselves, so that a slip in the reading above cannot pass everything.
@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("errors", "from deeppool.units import format_bytes"),
        ("documents", "from deeppool import cluster"),
        ("cluster", "from deeppool.base.timeline import Span"),
        ("graph", "import deeppool.planning.plan"),
        ("graph", "def late():\n    from deeppool.profiling import table"),
        ("collectives", "from deeppool.profiling.table import Profile"),
        ("profiling", "from deeppool.collectives.layout import Layout"),
        ("planning", "from deeppool.execution import ranks"),
        ("simulation", "from deeppool.collocation import neighbours"),
        ("execution", "from deeppool.collocation import neighbours"),
        ("execution", "from deeppool.simulation.plan.simulate import simulate"),
        ("execution", "from deeppool import simulate"),
        ("planning", "import deeppool as dp"),
        ("figures", "from deeppool import session"),
        ("session", "if TYPE_CHECKING:\n    pass\nelse:\n    import deeppool.cli"),
    ],
)
def test_an_import_that_points_up_or_across_is_found(unit: str, source: str) -> None:
    assert len(broken_rules(unit, source)) == 1


@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("costs", "from deeppool.graph.layer import Layer\nfrom deeppool.profiling.table import Profile"),
        ("costs", "from deeppool.collectives.layout import Layout"),
        ("graph", "if TYPE_CHECKING:\n    from deeppool.planning.plan import Plan"),
        ("graph", "from deeppool.graph.layer import Layer"),
        ("session", "from deeppool.collocation import neighbours\nfrom deeppool.execution import ranks"),
        ("env", "from deeppool import __version__"),
        ("cli", "import deeppool as dp"),
    ],
)
def test_an_import_that_points_down_or_left_is_allowed(unit: str, source: str) -> None:
    assert broken_rules(unit, source) == []


def test_public_names_are_sorted_and_each_has_a_home() -> None:
    assert deeppool.__all__ == sorted(deeppool._HOMES)


@pytest.mark.parametrize("name", deeppool.__all__)
def test_a_public_name_is_at_its_home(name: str) -> None:
    value = getattr(deeppool, name)
    home = deeppool._HOMES[name]
    if home == "deeppool":
        assert value is importlib.import_module(f"deeppool.{name}")
    else:
        assert value.__module__ == home


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        AttributeError,
        match="deeppool has no 'fit'; it has BackgroundJob, Cluster, Conditions, Coordinator, Link, Sampler, Sharing",
    ):
        deeppool.fit  # noqa: B018
