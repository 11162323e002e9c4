"""The structure of the package: who may import whom, what lies where, and what ``import deeppool`` offers."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import deeppool

PACKAGE = Path(deeppool.__file__).parent
TOP = {"__init__.py", "errors.py", "job.py", "units.py"}
"""All that lies beside the packages."""


def map_rows() -> list[str]:
    """The rows of the map in deeppool's docstring, the lowest first."""
    rows = re.findall(r"^    [a-z]+ {2,}(.+)$", (deeppool.__doc__ or "").partition("reads this map")[2], re.MULTILINE)
    return rows[::-1]


HEIGHTS = {
    unit.strip(): (row, step)
    for row, text in enumerate(map_rows())
    for step, units in enumerate(text.split("<"))
    for unit in units.split("|")
}
"""Of a unit: a module or package right under deeppool."""
FACADE = "deeppool"
"""deeppool/__init__.py: it loads any row when a name is used, so only the surfaces may import it whole."""


def homes() -> dict[str, str]:
    """Public name → module that defines it, as the stub of deeppool says."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"deeppool.{node.module}" for node in imports for alias in node.names if node.module}


HOMES = homes()


def unit_of(module: str) -> str:
    """``deeppool.graph.layer`` belongs to ``graph``; a public name of deeppool to the unit that is its home."""
    parts = HOMES.get(module.removeprefix("deeppool."), module).split(".")
    return parts[1] if len(parts) > 1 else FACADE


parsed = cache(ast.parse)


def test_no_assertion_has_an_effect() -> None:
    """``python -O`` removes assertions: those of the package narrow types, and call nothing but ``isinstance``."""
    calls = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and not _narrows(node.test)
    ]
    assert calls == []


def _narrows(test: ast.expr) -> bool:
    """Whether an expression is ``isinstance(x, T)``, ``x is not None``, or several of these joined by ``and``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(map(_narrows, test.values))
    if isinstance(test, ast.Call):
        return ast.unparse(test.func) == "isinstance"
    none = isinstance(test, ast.Compare) and [type(x) for x in test.ops] == [ast.IsNot]
    return none and not any(isinstance(part, ast.Call | ast.NamedExpr) for part in ast.walk(test))


def imported_modules(source: str, *, type_checking: bool = False) -> Iterator[tuple[int, str]]:
    """Line and name of each import of deeppool that runs, inside functions too; those of type checkers if asked for."""
    waiting: list[ast.AST] = [parsed(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting.extend(node.orelse)
            waiting.extend(node.body if type_checking else [])
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "deeppool")


def broken_rules(unit: str, source: str) -> list[str]:
    """The imports in a module of ``unit`` that point up or across."""
    broken = []
    for line, module in imported_modules(source):
        target = unit_of(module)
        if target == FACADE:
            allowed = HEIGHTS[unit][0] == max(HEIGHTS.values())[0]
        else:
            allowed = target == unit or HEIGHTS[target] < HEIGHTS[unit]
        if not allowed:
            broken.append(f"line {line}: {unit} imports {module}")
    return broken


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_of(path: Path) -> str:
    return ".".join(("deeppool", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def unit_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_down_or_left() -> None:
    found = {module_of(path): broken_rules(unit_of_file(path), path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {module: broken for module, broken in found.items() if broken} == {}


def test_the_map_names_every_package_and_no_other() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert {path.name for path in PACKAGE.glob("*.py")} == TOP
    assert set(HEIGHTS) == packages | {name.removesuffix(".py") for name in TOP - {"__init__.py"}}


def test_modules_do_not_import_each_other_in_a_ring() -> None:
    modules = {module_of(path) for path in SOURCES}
    imports = nx.DiGraph()
    for path in SOURCES:
        for _, name in imported_modules(path.read_text(encoding="utf-8"), type_checking=True):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and target != module_of(path):
                imports.add_edge(module_of(path), target)
    assert [sorted(ring) for ring in nx.strongly_connected_components(imports) if len(ring) > 1] == []


def test_a_package_says_what_each_of_its_modules_holds() -> None:
    missing = []
    for path in SOURCES:
        if path.stem.startswith("__"):
            continue
        map_of = ast.get_docstring(parsed((path.parent / "__init__.py").read_text(encoding="utf-8"))) or ""
        if path.parent != PACKAGE and not re.search(rf"\b{path.stem}\b", map_of):
            missing.append(module_of(path))
    assert missing == []


def test_no_two_public_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in SOURCES:
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module_of(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


# The rules themselves, so that a slip in the reading above cannot pass everything.
@pytest.mark.parametrize(
    ("unit", "source"),
    [
        ("errors", "from deeppool.units import format_bytes"),
        ("base", "from deeppool import cluster"),
        ("cluster", "from deeppool.records.run_record import RunRecord"),
        ("graph", "import deeppool.planning.plan"),
        ("graph", "def late():\n    from deeppool.profiling import table"),
        ("collectives", "from deeppool.profiling.table import Profile"),
        ("training", "from deeppool.collectives.layout import Layout"),
        ("planning", "from deeppool.execution import ranks"),
        ("simulation", "from deeppool.collocation import supervisor"),
        ("execution", "from deeppool.collocation import supervisor"),
        ("execution", "from deeppool.simulation.plan.simulate import simulate"),
        ("execution", "from deeppool import simulate"),
        ("planning", "import deeppool as dp"),
        ("runs", "from deeppool import figures"),
        ("coordinator", "from deeppool.widgets.panel import Panel"),
        ("execution", "from deeppool import launch"),
        ("runs", "if TYPE_CHECKING:\n    pass\nelse:\n    import deeppool.cli"),
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
        ("runs", "from deeppool.collocation import supervisor\nfrom deeppool.execution import ranks"),
        ("device", "from deeppool import __version__"),
        ("cli", "import deeppool as dp"),
    ],
)
def test_an_import_that_points_down_or_left_is_allowed(unit: str, source: str) -> None:
    assert broken_rules(unit, source) == []


def test_imports_of_type_checkers_count_in_rings() -> None:
    source = "if TYPE_CHECKING:\n    from deeppool.planning.plan import Plan"
    assert list(imported_modules(source)) == []
    assert list(imported_modules(source, type_checking=True)) == [(2, "deeppool.planning.plan.Plan")]


def test_the_public_names_are_those_of_the_stub() -> None:
    assert deeppool.__all__ == sorted([*HOMES, "figures", "widgets"])


@pytest.mark.parametrize(("name", "home"), HOMES.items())
def test_a_public_name_is_at_its_home(name: str, home: str) -> None:
    assert getattr(deeppool, name).__module__ == home


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(AttributeError, match="No deeppool attribute fit"):
        deeppool.fit  # noqa: B018
    assert dir(deeppool) == deeppool.__all__
