"""Pictures of figures, drawn by a real Chromium; a browser that fails costs no night."""

import json
import struct
from pathlib import Path

import plotly.graph_objects as go
import pytest

from deeppool.evaluation.thumbnails import draw, find_browser

needs_browser = pytest.mark.skipif(find_browser() is None, reason="there is no chromium")


def figure(**layout) -> dict:
    return json.loads(go.Figure(go.Bar(x=["a", "b"], y=[1, 2]), layout=layout).to_json())


@needs_browser
@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_browser_draws_each_figure_at_its_own_height_and_leaves_out_what_it_cannot_draw() -> None:
    browser = find_browser()
    assert browser is not None
    broken = {"data": [{"type": "bar"}], "layout": None}
    drawn = draw({"a/1": figure(height=300), "a/2": broken, "b/1": figure(title={"text": "</script> & <b>"})}, browser)
    assert set(drawn) == {"a/1", "b/1"}
    for name, height in (("a/1", 300), ("b/1", 540)):
        assert drawn[name].startswith(b"\x89PNG")
        assert struct.unpack(">II", drawn[name][16:24]) == (960, height)


@pytest.mark.parametrize("browser", ["false", "echo", "/nowhere/chromium"])
def test_a_browser_that_fails_draws_nothing(browser: str) -> None:
    assert draw({"a/1": figure()}, browser) == {}


def test_a_browser_that_hangs_draws_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging = tmp_path / "browser"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o755)
    monkeypatch.setattr("deeppool.evaluation.thumbnails.SECONDS", 0.2)
    assert draw({"a/1": figure()}, str(hanging)) == {}
