"""Findings of a notebook: saved as a record, printed beside the paper's."""

import math
from pathlib import Path

import numpy as np
import pytest

import deeppool as dp
from deeppool.errors import InvalidValueError
from deeppool.evaluation import Check, Evaluation, Findings, Number
from deeppool.evaluation.paper_values import PaperValue
from deeppool.evaluation.tables import paper_row


def found() -> Findings:
    findings = Findings("mine", "Trade-off against partitions", {"gpus": 8, "model": "vgg16"}, device="an A100")
    findings.number("speed-up at equal throughput", 1.31, "x", "simulated", paper=1.38, why="times of an H200")
    findings.number("iteration time", np.float64(0.0123), "s", "measured", spread=0.0004)
    findings.number("throughput over data parallelism", 1.7, "x", "simulated", paper="1.2 to 2.3")
    findings.check("burst parallelism gains", np.True_, "1.31x")
    findings.check("the frontier dominates", 0.9 > 1.0, "0.9 against 1")
    findings.check("priorities change little", False, "102 %", known="the core is taken at once")
    return findings


def test_findings_are_read_back_from_the_file(tmp_path: Path) -> None:
    saved = found().save(tmp_path)
    assert dp.load(tmp_path / "record.json") == saved
    assert saved.numbers[0] == Number(
        "speed-up at equal throughput", 1.31, "x", "simulated", paper=1.38, why="times of an H200"
    )
    assert saved.checks == (
        Check("burst parallelism gains", True, "1.31x"),
        Check("the frontier dominates", False, "0.9 against 1"),
        Check("priorities change little", False, "102 %", "the core is taken at once"),
    )
    assert saved.parameters == {"gpus": 8, "model": "vgg16"}
    assert not saved.holds
    assert "torch" in saved.versions


def test_the_text_has_the_papers_numbers_beside_ours_and_the_checks() -> None:
    evaluation = found().evaluation()
    text = str(evaluation)
    assert text.splitlines()[0] == f"Trade-off against partitions (mine; an A100, {evaluation.date})"
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "speed-up at equal throughput 1.38x 1.31x simulated times of an H200" in lines
    assert "iteration time – 12.3 ms ±400 us measured" in lines
    assert "throughput over data parallelism 1.2 to 2.3 1.7x simulated" in lines
    assert "burst parallelism gains holds 1.31x" in lines
    assert "the frontier dominates does not hold 0.9 against 1" in lines
    assert "priorities change little does not hold, as expected 102 %; the core is taken at once" in lines
    assert max(map(len, text.splitlines())) <= 100


def test_the_text_names_the_paper_and_marks_quotes_within_its_words() -> None:
    text = " ".join(str(Findings("fig9", "Cluster throughput", device="an A100").evaluation()).split())
    assert "title Efficient Strong Scaling Through Burst Parallel Training (DeepPool)" in text
    words = str(paper_row(PaperValue("gain", "almost 2", "", "section 7.1", "“BP + Col” almost doubles"), 1))
    assert "section 7.1: “‘BP + Col’ almost doubles”" in words


def test_parameters_of_numpy_are_saved(tmp_path: Path) -> None:
    findings = Findings("mine", "Sizes", {"gpus": np.int64(8), "batches": np.arange(1, 3)}, device="here")
    assert findings.save(tmp_path).parameters["gpus"] == 8
    assert dp.load(tmp_path / "record.json").parameters == {"gpus": 8, "batches": [1, 2]}


def test_a_check_that_cannot_fail_says_so_unless_it_fails() -> None:
    findings = found()
    findings.check("nothing is lost", True, "100 %", inapplicable="no interference is modelled")
    findings.check("something is kept", False, "0 %", inapplicable="no interference is modelled")
    lines = {" ".join(line.split()) for line in str(findings.evaluation()).splitlines()}
    assert "nothing is lost not applicable 100 %; no interference is modelled" in lines
    assert "something is kept does not hold 0 %" in lines
    assert [check.shows for check in findings.evaluation().checks[-2:]] == [False, False]


def test_long_names_and_reasons_fold_and_numbers_stay_whole() -> None:
    findings = Findings("fig1", "Long", device="an A100")
    findings.number("a name that is long " * 4, 0.00123, "s", "measured", paper=0.00456, why="because " * 20)
    text = str(findings.evaluation())
    assert "4.56 ms" in text and "1.23 ms" in text and "measured" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_html_has_the_same_cells_escaped() -> None:
    findings = found()
    findings.check("a < b", True, "<script>")
    html = findings.evaluation()._repr_html_()
    assert "<td>1.38x</td><td>1.31x</td><td>simulated</td>" in html
    assert "<td>a &lt; b</td><td>holds</td><td>&lt;script&gt;</td>" in html


def test_a_cell_that_runs_again_changes_its_number_and_adds_none() -> None:
    findings = found()
    findings.number("iteration time", 0.5, "s", "measured")
    findings.check("the frontier dominates", True)
    made = findings.evaluation()
    assert [number.name for number in made.numbers].count("iteration time") == 1
    assert made.numbers[1].value == 0.5
    assert made.holds


def test_without_a_device_it_is_this_machine() -> None:
    assert Findings("fig1", "Here").evaluation().device


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"value": math.nan}, "number 'time' has value nan: a record holds finite numbers only"),
        ({"paper": math.inf}, "number 'time' has paper inf"),
        ({"spread": -1.0}, "number 'time' has spread -1.0, it must be at least 0"),
        ({"basis": "guessed"}, "number 'time' has basis 'guessed', expected one of measured, emulated"),
    ],
)
def test_an_invalid_number_is_refused(arguments: dict, phrase: str) -> None:
    whole = {"name": "time", "value": 1.0, "unit": "s", "basis": "measured"}
    with pytest.raises(InvalidValueError, match=phrase):
        Findings("fig1", "Wrong").number(**(whole | arguments))


def test_two_numbers_of_one_name_are_refused() -> None:
    twice = (Number("time", 1.0, "s", "measured"),) * 2
    with pytest.raises(InvalidValueError, match="fig1 has two numbers 'time'"):
        Evaluation("fig1", "Twice", twice, (), "here", "2026-11-21", {}, {})
