"""Index page of a nightly run: its regression report, and every notebook with its numbers, checks and links."""

from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.errors import DeeppoolError
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome
from deeppool.evaluation.record import Evaluation
from deeppool.evaluation.regression_report import CHANGE_HEADINGS, RegressionReport, change_row
from deeppool.evaluation.tables import html_tables, html_templates
from deeppool.units import format_seconds

INDEX = "index.html"
MAX_CHANGES = 100
"""Rows of changed numbers on the page."""


def write_index(run: NightlyRun, report: RegressionReport, folder: Path) -> Path:
    """Writes ``index.html`` into the folder of a nightly run.

    Raises:
        DocumentError: the page cannot be written.
    """
    return serialization.write_text(page(run, report, folder), folder / INDEX)


def page(run: NightlyRun, report: RegressionReport, folder: Path) -> str:
    """Returns the index page as HTML; it loads nothing from a network."""
    return (
        html_templates()
        .get_template(INDEX)
        .render(
            run=run,
            report=report,
            compared=[(name, (folder.parent / name / INDEX).is_file()) for name in report.compared],
            sections=_sections(report),
            notebooks=[_notebook(outcome, folder) for outcome in run.outcomes],
        )
    )


def _sections(report: RegressionReport) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]], str, str]]:
    """Returns the tables of the report: heading, column headings, rows, class, and a remark below."""
    more = len(report.moved) - MAX_CHANGES
    remark = f"And {more} more, in verdict.json." if more > 0 else ""
    changed = [change_row(change) for change in report.moved[:MAX_CHANGES]]
    failed = [(x.notebook, f"failed: {x.problem}", f"since {x.since}") for x in report.broken]
    failed += [(name, problem, "") for name, _, problem in (x.partition(": ") for x in report.not_run)]
    checks = [[(x.notebook, x.statement, x.detail, x.history) for x in found] for found in (report.unmet, report.known)]
    other = [("installed since the last run", x) for x in report.versions]
    other += [("no longer reported", x) for x in report.gone]
    check_headings = ("notebook", "check", "because", "")
    return [
        ("Changed beyond noise", CHANGE_HEADINGS, changed, "dp-numbers", remark),
        ("Failed or not run", ("notebook", "", ""), list(failed), "", ""),
        ("Checks that do not hold", check_headings, list(checks[0]), "", ""),
        ("Expected failures", check_headings, list(checks[1]), "", ""),
        ("Other changes", ("", ""), list(other), "", ""),
    ]


def _notebook(outcome: NotebookOutcome, folder: Path) -> dict[str, Any]:
    """Returns the values of the template for one notebook."""
    done = outcome.state == "done"
    evaluation = _evaluation(folder / outcome.name / RECORD) if done else None
    how = f"done in {format_seconds(outcome.seconds)}" if done else outcome.state
    return {
        "title": outcome.title,
        "html": outcome.html,
        "executed": outcome.notebook,
        "done": done,
        "state": f"{outcome.name}: {how}",
        "problem": outcome.problem,
        "evaluation": evaluation,
        "tables": html_tables(evaluation.numbers, evaluation.checks, evaluation.paper) if evaluation else [],
    }


def _evaluation(record: Path) -> Evaluation | None:
    """Returns a notebook's record; None where it left no readable one."""
    try:
        return serialization.read(record, Evaluation)
    except DeeppoolError:
        return None
