"""Pages of the site that are generated: the Python reference, the schema of every file, and executed notebooks.

mkdocs calls :func:`on_files`; the pages are never written into this folder.
"""

import ast
import dataclasses
import importlib
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Makes the notebooks a section of the navigation."""
    from docs import executed_notebooks

    assert config.nav is not None
    place = config.nav.index({"Notebooks": f"{executed_notebooks.FOLDER}/index.md"})
    config.nav[place] = {"Notebooks": executed_notebooks.section(config.extra["notebooks"])}
    return config


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Adds the generated pages."""
    from mkdocs.structure.files import File

    from docs import executed_notebooks

    generated = [
        ("reference.md", reference()),
        ("records.md", records()),
        *executed_notebooks.pages(config.extra["notebooks"]),
    ]
    for name, text in generated:
        files.append(File.generated(config, name, content=text))
    return files


def reference() -> str:
    """Returns a page with the documentation of every public name."""
    stub = ast.parse((CHECKOUT / "deeppool/__init__.pyi").read_text(encoding="utf-8"))
    names = [
        f"deeppool.{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]
    elsewhere = {path_of(record) for record in record_classes()}
    return "\n\n".join(
        [
            "# Python",
            "The public names of `import deeppool as dp`. Records are in [Record schemas](records.md).",
            *(f"::: {name}" for name in names if name not in elsewhere),
            "## Widgets",
            "::: deeppool.widgets",
            "## Figures",
            "::: deeppool.figures",
        ]
    )


def records() -> str:
    """Returns a page with the fields of every kind of file, and of the objects in them."""
    from deeppool.records.files import KINDS

    lines = [
        "# Record schemas",
        'Every file is JSON with `"format": "deeppool/KIND"` and `"version": N`, written whole or not at all, and '
        "checked when it is read: an error names the file, the field and the value. Fields are those of the class "
        "below, by name; a nested class is a nested object, a tuple a list. `dp.load` reads any of them, "
        "`deeppool show FILE` shows it, and `deeppool diff A B` compares two of one kind. Times are seconds and sizes "
        "bytes, unless a field says otherwise.",
    ]
    kinds = {f"{module}.{name}": kind for kind, (module, name) in KINDS.items()}
    for path, kind in kinds.items():
        lines += [f"## {kind}", fields_of(path)]
    nested = sorted({path_of(record) for record in record_classes()} - kinds.keys())
    return "\n\n".join([*lines, "## Objects in records", *map(fields_of, nested)])


def fields_of(path: str) -> str:
    """Returns the directive that lists the fields of a class."""
    return (
        f"::: {path}\n    options:\n      members_order: source\n      heading_level: 3\n      show_bases: false\n"
        '      filters: ["!^_", "!^KIND$"]\n      summary: false\n      show_if_no_docstring: true'
    )


def record_classes() -> set[type]:
    """Returns the classes of all files, and those of the objects in them."""
    from deeppool.records.files import KINDS

    found: set[type] = set()
    waiting: list[Any] = [getattr(importlib.import_module(module), name) for module, name in KINDS.values()]
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind not in found:
            found.add(kind)
            hints = typing.get_type_hints(kind)
            waiting += [hints[field.name] for field in dataclasses.fields(kind)]
    return found


def path_of(kind: type) -> str:
    """Returns the dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"
