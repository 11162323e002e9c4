"""Files that try to have code executed: none is."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppool as dp
from deeppool.errors import DocumentError
from deeppool.execution.checkpoint import load_weights
from deeppool.figures.record_page import record_page
from tests.command import Command
from tests.execution.test_checkpoint import copy_of, make_trainer, write

SCRIPT = "<script>alert(1)</script>"


def renamed(path: Path, old: str, new: str) -> Any:
    """The document with another value wherever one equals the old."""
    return json.loads(path.read_text().replace(json.dumps(old), json.dumps(new)))


def test_showing_a_plan_imports_nothing_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deeppool: Command
) -> None:
    plan = dp.plan(dp.find_profile("vgg16-cpu"), 2, 8)
    (tmp_path / "hostile_module.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = dp.save(plan, tmp_path / "plan.json")
    path.write_text(json.dumps(renamed(path, "vgg16", "hostile_module:run")))
    assert "hostile_module:run" in path.read_text()
    for command in (
        ["show", str(path), "--html", "page.html"],
        ["diff", str(path), str(path)],
        ["simulate", str(path)],
    ):
        code, _, err = deeppool(*command)
        assert code == 0, err
    assert not (tmp_path / "executed").exists()
    assert "hostile_module" not in sys.modules


def test_names_of_a_record_are_text_in_a_page(tmp_path: Path) -> None:
    path = dp.save(dp.plan(dp.find_profile("vgg16-cpu"), 2, 8), tmp_path / "plan.json")
    path.write_text(json.dumps(renamed(path, "classifier.0", SCRIPT)))
    plan = dp.load(path)
    assert SCRIPT in {layer.name for layer in plan.layers}
    page = record_page(SCRIPT, [(SCRIPT, plan)])
    # In the figure's data it is inside a string of a script, where "<" is escaped.
    assert SCRIPT not in page


class Executed:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_in_place_of_a_shard_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    (tmp_path / "copy").mkdir()
    _, trainer = make_trainer()
    checkpoint = copy_of(write(trainer, tmp_path / "original"), tmp_path / "copy", checksums=False)
    torch.save({"model": Executed(tmp_path / "executed")}, checkpoint / "rank-0.pt")
    with pytest.raises(DocumentError):
        load_weights(checkpoint)
    assert not (tmp_path / "executed").exists()
    # The file would have done it.
    torch.load(checkpoint / "rank-0.pt", weights_only=False)
    assert (tmp_path / "executed").exists()
