"""Every promise of SECURITY.md names a test that there is."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_promise_has_its_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) == len(set(named)) == text.count("| `tests/")
    for file, test in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"
