"""The project's notebooks, as tests look at them."""

import ast
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EVALUATIONS = sorted((ROOT / "notebooks" / "evaluation").glob("*.ipynb"))
NAMES = ["burst-parallel", "model-and-layers", "planning", "timelines", "collocation", "runs", "your-own-model"]
"""As ``deeppool evaluate`` knows them, in their order."""


def cells_of(path: Path) -> list[Any]:
    return list(nbformat.read(path, as_version=4).cells)


def code_cells(path: Path, tag: str | None = None) -> list[str]:
    cells = [cell for cell in cells_of(path) if cell.cell_type == "code"]
    return [cell.source for cell in cells if tag is None or tag in cell.metadata.get("tags", [])]


def parameters_of(path: Path) -> set[str]:
    (source,) = code_cells(path, "parameters")
    return {target.id for node in ast.parse(source).body for target in node.targets}


def uses(path: Path) -> set[str]:
    """Names that are read, ``dp.plan`` among them, in all cells but the parameters'."""
    sources = code_cells(path)
    sources.remove(*code_cells(path, "parameters"))
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names | {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}


def is_figure(source: str) -> bool:
    """Whether the cell shows a figure of a record."""
    return source.startswith(("dp.figures.", "figures."))
