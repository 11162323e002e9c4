"""Widgets inherit hundreds of names: one that a widget uses for something else breaks what nobody looks at."""

import ast
import importlib
import inspect
import pkgutil
import textwrap
from types import ModuleType

import ipywidgets
import pytest

from deeppool import widgets

MODULES = [
    importlib.import_module(f"deeppool.widgets.{found.name}") for found in pkgutil.iter_modules(widgets.__path__)
]
OURS = sorted(
    {
        found
        for module in MODULES
        for found in vars(module).values()
        if inspect.isclass(found) and found.__module__ == module.__name__ and issubclass(found, ipywidgets.Widget)
    },
    key=lambda widget: widget.__name__,
)
MEANT = {"_repr_mimebundle_", "_ipython_display_", "_esm", "_css", "close", "get_state", "set_state"}
"""Names that are there to be given another meaning."""


@pytest.mark.parametrize("widget", OURS, ids=lambda widget: widget.__name__)
def test_a_widget_takes_no_name_of_ipywidgets_for_something_else(widget: type[ipywidgets.Widget]) -> None:
    theirs = next(base for base in widget.__mro__ if not base.__module__.startswith("deeppool."))
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(widget))).body
    # Stores of the class's own body are names of the class; traitlets adds more of its own.
    inside = {node.id for part in made.body for node in ast.walk(part) if _is_class_name(part, node)}
    methods = {part.name for part in made.body if isinstance(part, ast.FunctionDef)}
    assigned = {
        node.attr
        for node in ast.walk(made)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }
    # To be set is what traits and properties are for.
    properties = {name for name in assigned if isinstance(getattr(theirs, name, None), property)}
    used = inside | methods | assigned - set(theirs.class_trait_names()) - properties
    assert {name for name in used & set(dir(theirs)) - MEANT if not name.startswith("__")} == set()


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_module_keeps_no_widget_for_all_panels(module: ModuleType) -> None:
    """``Widget.close_all()`` of a notebook would close it, and no panel could be made after that."""
    for name, value in vars(module).items():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        assert not any(isinstance(part, ipywidgets.Widget) for part in parts), name


def _is_class_name(part: ast.stmt, node: ast.AST) -> bool:
    # A type without a value is for the type checker.
    given = isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None
    return given and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_label_of_a_slider_or_of_buttons_has_a_tooltip(module: ModuleType) -> None:
    """Without one ipywidgets' page shows "null" where the mouse is on the label."""
    kinds = {"ToggleButtons", *(name for name in dir(ipywidgets) if name.endswith("Slider"))}
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in kinds:
            assert "tooltip" in {keyword.arg for keyword in call.keywords}, f"line {call.lineno}"
