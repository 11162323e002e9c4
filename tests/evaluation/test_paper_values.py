"""What the papers print: quoted from their texts, beside the numbers of a notebook, or with the reason for none."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.evaluation import Findings, figures
from deeppool.evaluation.experiments.search_times import SEARCHES, SearchTime
from deeppool.evaluation.figures import printed
from deeppool.evaluation.paper_values import PAPERS, PaperValue, paper_values
from deeppool.figures import theme
from tests.evaluation.test_evaluation_notebooks import COMPANIONS, IN_THE_PAPER, name_of
from tests.notebooks.execute import EVALUATIONS, ROOT, code_cells

TEXTS = ROOT.parent / "shared" / "papers"
EVERY = sorted((IN_THE_PAPER | COMPANIONS) - {"five"})
"""All evaluations of a paper; "five" compares techniques on one model, as no paper does."""


def named(path: Path) -> list[str]:
    """Patterns of the names of a notebook's numbers, from its source: what is computed may be anything."""
    # A pattern that is all parameters would match every name.
    least_text = 4
    found = []
    for node in (node for source in code_cells(path) for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.JoinedStr):
            text = [str(part.value) for part in node.values if isinstance(part, ast.Constant)]
            if len("".join(text)) < least_text:
                continue
            parts = [re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values]  # type: ignore[arg-type]
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.escape(node.value))
    return found


@pytest.mark.parametrize("name", EVERY)
def test_every_evaluation_has_its_values_or_says_that_none_is_printed(name: str) -> None:
    values = paper_values(name)
    assert values.title and values.unprinted
    assert values.values, "no value and no words of the paper"
    for value in values.values:
        assert value.quote and value.place
        assert len(value.quote) <= 130, "quotes are short"


@pytest.mark.parametrize("path", EVALUATIONS, ids=lambda path: path.stem)
def test_a_value_without_a_reason_has_a_number_of_the_notebook(path: Path) -> None:
    patterns = named(path)
    for value in paper_values(name_of(path)).values:
        if not value.missing:
            assert any(re.fullmatch(one, value.name.replace("*", "any")) for one in patterns), value.name


@pytest.mark.parametrize("path", EVALUATIONS, ids=lambda path: path.stem)
def test_no_notebook_has_a_papers_value_of_its_own(path: Path) -> None:
    calls = [node for source in code_cells(path) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    assert [ast.unparse(call) for call in calls if "paper" in {given.arg for given in call.keywords}] == []


@pytest.mark.parametrize("name", EVERY)
def test_a_record_with_its_papers_values_is_read_back(name: str, tmp_path: Path) -> None:
    saved = Findings(name, "Saved", device="here").save(tmp_path)
    assert saved.paper == paper_values(name)
    assert dp.load(tmp_path / "record.json") == saved


def typeset(text: str) -> str:
    """A paper's text with the formulas that are quoted as a reader sees them."""
    text = text.replace(r"×\times", "×").replace(r"\%", "%")
    text = re.sub(r"\\sim\s*", "~", text)
    return re.sub(r"\$(~|< )(\d+[%x])\$", r"\1\2", text)


@pytest.mark.parametrize("path", sorted(PAPERS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_quote_stands_in_the_papers_text(path: Path) -> None:
    text = TEXTS / f"{path.stem}.txt"
    if not text.is_file():
        pytest.skip("the papers' texts are not part of the project")
    whole = " ".join(typeset(text.read_text(encoding="utf-8")).split())
    sections = [table for table in tomllib.loads(path.read_text(encoding="utf-8")).values() if isinstance(table, dict)]
    quotes = [value["quote"] for section in sections for value in section.get("values", [])]
    assert quotes
    assert not [quote for quote in quotes if quote not in whole]


def test_a_number_stands_beside_its_value_and_the_others_have_none() -> None:
    findings = Findings("fig10", "Partitions", device="an A100")
    findings.number("vgg16, most at equal throughput", 99, "%", "predicted", why="estimated times")
    findings.number("resnet50, most at equal throughput", 9, "%", "predicted", why="estimated times")
    beside, alone = findings.evaluation().numbers
    assert (beside.paper, beside.why) == (38.0, "estimated times")
    assert (alone.paper, alone.why) == (None, "")
    html = findings.evaluation()._repr_html_()
    assert "<td>38 %</td><td>99 %</td>" in html and "<td>not printed</td><td>9 %</td>" in html
    assert "“can achieve up to 38% higher" in html and "<td>not with these parameters</td>" in html
    assert max(map(len, str(findings.evaluation()).splitlines())) <= 100


def test_a_star_stands_for_parameters_and_not_for_the_parts_of_a_number() -> None:
    values = paper_values("table3")
    assert values.levels_beside("inception_v3, 1024 GPUs, exact") == (3.23,)
    assert values.beside("inception_v3, 1024 GPUs, exact: pricing") is None
    assert values.beside("resnet50, 8 GPUs, exact") is None


def test_a_value_that_cannot_be_had_stands_beside_no_number() -> None:
    value = PaperValue("speed-up", 2.0, "x", "section 1", "twice as fast", missing="no GPU")
    assert not value.is_beside("speed-up")


@pytest.mark.parametrize(
    ("value", "levels"),
    [(1.5, (1.5,)), ("1.1 to 1.2", (1.1, 1.2)), ("up to 3.84", (3.84,)), ("almost 2", (2.0,)), ("falls", ())],
)
def test_numbers_and_ranges_can_be_drawn_and_words_cannot(value: float | str, levels: tuple[float, ...]) -> None:
    assert PaperValue("a", value, "x", "section 1", "words").levels == levels


def test_a_figure_shows_both_ends_of_what_the_paper_prints() -> None:
    import plotly.graph_objects as go

    figure = printed(go.Figure(), "wavelet", "model parallelism, 8 ranks", scale=1 / 8)
    assert [shape.y0 for shape in figure.layout.shapes] == pytest.approx([4.7 / 8, 6.7 / 8])
    # A curve may cross the words.
    assert all(note.font.shadow == theme.halo() for note in figure.layout.annotations)
    assert not printed(go.Figure(), "fig2", "samples per GPU on 4").layout.shapes


def test_search_times_have_the_papers_beside_them_for_its_models() -> None:
    times = [
        SearchTime(model, 8, search, 0.1, 0.1, 0.0, 0.1, 1.0) for model in ("vgg16", "mine") for search in SEARCHES
    ]
    figure = figures.search_times(times)
    *bars, marks = figure.data
    assert len(bars) == len(SEARCHES)
    assert [list(part) for part in marks.x] == [["vgg16"], ["8 GPUs"]]
    assert list(marks.y) == [0.01]
    # On the bars of the published search, not in the middle of all.
    assert (figure.layout.barmode, figure.layout.scattermode) == ("group", "group")
    assert [bar.name for bar in bars if bar.offsetgroup == marks.offsetgroup] == ["published, paper's model"]
    # Bars at 0.1 alone would lie too close for these.
    axis = figure.layout.yaxis
    assert {"dtick": axis.dtick, "tickformat": axis.tickformat} == theme.log_ticks([0.01, 0.1])


def test_a_value_counts_only_the_numbers_that_show_it() -> None:
    findings = Findings("fig1", "Ways", device="here")
    for gpus in (4, 256):
        findings.number(f"weak, speed-up on {gpus} GPUs", gpus / 2, "x", "predicted")
    assert [number.paper for number in findings.evaluation().numbers] == ["linear", "sub-linear"]
    assert findings.evaluation()._repr_html_().count("<td>above</td>") == 2
