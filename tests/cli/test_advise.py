"""``deeppool advise``: text, JSON, files and the page."""

import json
from pathlib import Path

import pytest

import deeppool as dp
from tests.command import Command, Outcome

ARGUMENTS = ["--gpus", "4", "--global-batch", "8"]


@pytest.fixture
def advise(deeppool: Command, tmp_path: Path):
    profile = dp.save(dp.find_profile("resnet50-cpu"), tmp_path / "mine.json")

    def run(*arguments: str, model: str = str(profile)) -> Outcome:
        return deeppool("advise", model, *ARGUMENTS, *arguments)

    return run


@pytest.mark.slow
def test_the_text_is_the_advice_of_python_and_files_hold_it(advise, tmp_path: Path) -> None:
    code, out, err = advise("--html", str(tmp_path / "page.html"), "-o", str(tmp_path / "advice.json"))
    assert (code, err) == (0, "")
    saved = dp.load(tmp_path / "advice.json")
    assert out.strip() == saved.explain()
    assert len(out.strip().split("\n")) <= 12
    again = dp.advise(str(tmp_path / "mine.json"), 4, 8)
    assert saved.findings == again.findings
    page = (tmp_path / "page.html").read_text()
    assert page.count("plotly-graph-div") >= 3
    assert "The fastest plan" in page


def test_json_is_one_object(advise) -> None:
    code, out, _ = advise("--json")
    assert code == 0
    assert {finding["verdict"] for finding in json.loads(out)["findings"]} <= {"yes", "no", "unknown"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "16"], "error: 16 GPUs"),
        (["--html", "/no/such/folder/page.html"], "error: "),
    ],
)
def test_what_cannot_be_done_is_one_line(advise, arguments: list[str], said: str) -> None:
    code, out, err = advise(*arguments)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_an_unknown_gpu_is_one_line(advise) -> None:
    code, out, err = advise("--device", "abacus", model="resnet18")
    assert (code, out) == (1, "")
    assert "abacus" in err
