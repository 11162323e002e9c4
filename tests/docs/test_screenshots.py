"""The scripts that make the pictures use what the browser tests' notebook has; they run too rarely to tell."""

import ast
from pathlib import Path

import pytest

pytest.importorskip("playwright")
from tests.browser.notebook import Notebook

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("script", ["screenshots.py", "scenes.py"])
def test_a_script_calls_methods_that_a_notebook_has(script: str) -> None:
    calls = [node.func for node in ast.walk(ast.parse((DOCS / script).read_text())) if isinstance(node, ast.Call)]
    called = {
        call.attr
        for call in calls
        if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id == "notebook"
    }
    assert called
    assert not {name for name in called if not hasattr(Notebook, name)}
