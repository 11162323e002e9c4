"""The page of a night: its verdict, and every notebook with its pictures, numbers and checks. It needs no network."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from deeppool.base import serialization
from deeppool.errors import DeeppoolError
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.nightly_record import NightlyRun, Outcome
from deeppool.evaluation.record import Evaluation
from deeppool.evaluation.regression_report import MOVED_HEADINGS, RegressionReport, moved_row
from deeppool.evaluation.report import (
    CHECK_HEADINGS,
    NUMBER_HEADINGS,
    NUMBERS,
    check_row,
    html_table,
    number_row,
)
from deeppool.evaluation.thumbnails import PLOTLY, Figure, inline_json, night_figures
from deeppool.units import format_seconds

INDEX = "index.html"
MOST_MOVED = 100

_STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --paper: #fff; --card: #f6f7f9; --line: #d9dde2; --soft: #57606a;
        --good: #006d4f; --bad: #a33f00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #d7dce2; --paper: #16181c; --card: #1d2025; --line: #33383f; --soft: #9aa4af;
          --good: #3fc59c; --bad: #ff9a55; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1400px; background: var(--paper); color: var(--ink);
       font: 15px/1.5 system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
h3 { font-size: 16px; margin: 0; } a { color: inherit; } p { margin: 4px 0; }
.soft { color: var(--soft); } .good { color: var(--good); } .bad { color: var(--bad); }
.verdict { font-size: 18px; font-weight: 600; margin: 16px 0; padding: 12px 16px; background: var(--card);
           border-left: 6px solid currentColor; }
table { border-collapse: collapse; font-size: 14px; } .scroll { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: 4px 16px 4px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } td { font-variant-numeric: tabular-nums; }
.dp-numbers td:nth-child(n+2):nth-child(-n+4) { white-space: nowrap; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr)); gap: 16px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px; min-width: 0; }
.pictures { margin: 12px 0 4px; display: grid; gap: 8px; }
.pictures img, .figure { width: 100%; background: #fff; border-radius: 4px; display: block; overflow: hidden; }
summary { cursor: pointer; color: var(--soft); }
"""

# Where no browser was there to draw pictures, the reader's own draws the figures: each when it comes into view.
_DRAW = """
const seen = new IntersectionObserver(entries => entries.filter(entry => entry.isIntersecting).forEach(entry => {
  seen.unobserve(entry.target);
  const figure = JSON.parse(document.getElementById(entry.target.dataset.figure).textContent);
  const width = entry.target.clientWidth, height = figure.layout.height || 540;
  const stage = document.createElement("div");
  entry.target.append(stage);
  Plotly.newPlot(stage, figure.data, {...figure.layout, width: 960, height}, {staticPlot: true});
  stage.style.cssText = `width: 960px; transform-origin: 0 0; transform: scale(${width / 960})`;
  entry.target.style.height = `${height * width / 960}px`;
}), {rootMargin: "400px"});
document.querySelectorAll(".figure").forEach(place => seen.observe(place));
"""


def write_index(night: NightlyRun, found: RegressionReport, folder: Path) -> Path:
    """Writes ``index.html`` into a night's folder.

    Raises:
        DocumentError: it cannot be written.
    """
    missing = {outcome.name for outcome in night.outcomes if not outcome.thumbnails}
    live = {name: figure for name, figure in night_figures(night, folder).items() if name.split("/")[0] in missing}
    return serialization.write_text(page(night, found, folder, live), folder / INDEX)


def page(night: NightlyRun, found: RegressionReport, folder: Path, live: Mapping[str, Figure]) -> str:
    """The page as HTML; ``live`` figures are drawn by the reader's browser."""
    cards = [
        _card(outcome, folder, [name for name in live if name.split("/")[0] == outcome.name])
        for outcome in night.outcomes
    ]
    scripts = [
        f'<script type="application/json" id="{escape(name)}">{inline_json(figure)}</script>'
        for name, figure in live.items()
    ]
    if live:
        scripts = [f'<script src="{PLOTLY}"></script>', *scripts, f"<script>{_DRAW}</script>"]
    title = f"deeppool, night of {night.name}"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            f'<p class="soft">{escape(_circumstances(night))}</p>',
            *_verdict(found, folder),
            "<h2>Notebooks</h2>",
            f'<div class="cards">{"".join(cards)}</div>',
            *scripts,
            "</body></html>\n",
        ]
    )


def _circumstances(night: NightlyRun) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in night.versions.items())
    return f"{night.preset} preset; {night.device}; {night.started} to {night.finished}; {versions}"


def _verdict(found: RegressionReport, folder: Path) -> list[str]:
    links = [
        f'<a href="../{name}/{INDEX}">{name}</a>' if (folder.parent / name / INDEX).is_file() else name
        for name in map(escape, found.compared)
    ]
    nobody = "no night: this is the first of its preset and machine"
    parts = [
        f'<p class="verdict {"good" if found.fine else "bad"}">{escape(str(found))}</p>',
        f'<p class="soft">Compared with {", ".join(links) or nobody}.</p>',
    ]
    if found.moved:
        rows = [moved_row(move) for move in found.moved[:MOST_MOVED]]
        parts += _section("Moved beyond their noise", html_table(MOVED_HEADINGS, rows, NUMBERS))
        if len(found.moved) > MOST_MOVED:
            parts.append(f'<p class="soft">And {len(found.moved) - MOST_MOVED} more, in verdict.json.</p>')
    troubles = [(x.notebook, f"broke: {x.problem}", f"since {x.since}") for x in found.broken]
    troubles += [(name, why, "") for name, _, why in (x.partition(": ") for x in found.not_run)]
    if troubles:
        parts += _section("Broke, or did not run", html_table(("notebook", "", ""), troubles))
    for heading, unmet in (("Checks that do not hold", found.unmet), ("Differences that are known", found.known)):
        if unmet:
            rows = [(x.notebook, x.statement, x.detail, x.history) for x in unmet]
            parts += _section(heading, html_table(("notebook", "check", "because", ""), rows))
    changes = [("installed since the last night", each) for each in found.versions]
    changes += [("no longer told", each) for each in found.gone]
    if changes:
        parts += _section("Also", html_table(("", ""), changes))
    return parts


def _section(heading: str, body: str) -> list[str]:
    return [f"<h2>{escape(heading)}</h2>", f'<div class="scroll">{body}</div>']


def _card(outcome: Outcome, folder: Path, live: Sequence[str]) -> str:
    title = escape(outcome.title)
    if outcome.html:
        title = f'<a href="{escape(outcome.html)}">{title}</a>'
    how = {"done": f"done in {format_seconds(outcome.seconds)}", "failed": "failed", "not run": "did not run"}
    parts = [
        f"<h3>{title}</h3>",
        f'<p class="{"soft" if outcome.state == "done" else "bad"}">{escape(outcome.name)}: {how[outcome.state]}</p>',
    ]
    if outcome.problem:
        parts.append(f"<p>{escape(outcome.problem)}</p>")
    alt = escape(f"figure of {outcome.name}")
    pictures = [
        f'<a href="{escape(outcome.html)}"><img src="{escape(path)}" alt="{alt}" loading="lazy"></a>'
        for path in outcome.thumbnails
    ]
    pictures += [f'<div class="figure" data-figure="{escape(name)}"></div>' for name in live]
    if pictures:
        parts.append(f'<div class="pictures">{"".join(pictures)}</div>')
    if outcome.state == "done":
        parts.append(_numbers(folder / outcome.name / RECORD))
    return f'<section class="card">{"".join(parts)}</section>'


def _numbers(path: Path) -> str:
    """The notebook's own table; empty where it leaves none."""
    if not path.is_file():
        return ""
    try:
        evaluation = serialization.read(path, Evaluation)
    except DeeppoolError:
        return ""
    tables = [
        html_table(headings, rows, kind)
        for headings, rows, kind in (
            (NUMBER_HEADINGS, [number_row(number) for number in evaluation.numbers], NUMBERS),
            (CHECK_HEADINGS, [check_row(check) for check in evaluation.checks], ""),
        )
        if rows
    ]
    told = f"{len(evaluation.numbers)} numbers, {len(evaluation.checks)} checks"
    return f'<details><summary>{told}</summary><div class="scroll">{"".join(tables)}</div></details>'
