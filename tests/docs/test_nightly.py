"""Examples of docs/nightly.md are valid for cron, systemd and GitHub, and their commands exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from deeppool.cli.app import app
from deeppool.evaluation import nightly

TEXT = (Path(__file__).parents[2] / "docs" / "nightly.md").read_text(encoding="utf-8")


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", TEXT, flags=re.DOTALL)
    return found


def nightly_commands() -> list[str]:
    return re.findall(r"deeppool\"? (nightly [^`\n|]*?)(?: 2>&1\)|`|\n)", TEXT)


def test_the_commands_take_the_options_that_they_are_shown_with() -> None:
    commands = nightly_commands()
    assert len(commands) >= 4
    help_text = CliRunner().invoke(app, ["nightly", "--help"]).output
    for command in commands:
        for part in shlex.split(command):
            if part.startswith("-"):
                assert part in help_text, command


def test_the_cron_line_has_five_fields_and_a_command_that_a_shell_can_read() -> None:
    line = block("cron").strip()
    fields = line.split(maxsplit=5)
    assert all(re.fullmatch(r"[\d*,/-]+", field) for field in fields[:5])
    # cron ends a command at a percent sign.
    assert "%" not in line
    subprocess.run(["sh", "-n", "-c", fields[5]], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    # The unit starts what is in the reader's home folder; here something stands in for it.
    service = block("systemd-service").replace("%h/deeppool/.venv/bin/deeppool", "/bin/true")
    assert "/bin/true nightly -o nights" in service
    (tmp_path / "deeppool-nightly.service").write_text(service)
    (tmp_path / "deeppool-nightly.timer").write_text(block("systemd-timer"))
    units = sorted(tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "deeppool-nightly" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_workflow_runs_on_a_schedule_and_keeps_a_run_that_failed_too() -> None:
    # YAML reads "on" as true.
    workflow = yaml.safe_load(block("yaml"))
    assert workflow[True]["schedule"][0]["cron"].split()[:2] == ["15", "1"]
    (job,) = workflow["jobs"].values()
    *_, run, find, upload = job["steps"]
    assert "deeppool nightly -o" in run["run"]
    assert find["if"] == upload["if"] == "always()"
    for step in job["steps"]:
        assert {"uses", "run"} & set(step)


def test_the_newest_run_is_found_by_the_workflows_command(tmp_path: Path) -> None:
    for name in ("2026-11-09", "2026-11-21", "2026-11-21-2", "2026-11-21-10", ".unfinished"):
        (tmp_path / "nights" / name).mkdir(parents=True)
        (tmp_path / "nights" / name / name).touch()
    job = yaml.safe_load(block("yaml"))["jobs"]["nightly"]
    (find,) = [step["run"] for step in job["steps"] if step.get("name") == "Find the newest run"]
    subprocess.run(["sh", "-c", find], cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "newest" / "2026-11-21-10").is_file()


def test_the_numbers_in_the_text_are_those_of_the_code() -> None:
    from deeppool.evaluation.archive import KEEP
    from deeppool.evaluation.number_comparison import FLOOR, GROUP_SCALES, HISTORY, MIN_RUNS, SCALES

    assert (KEEP, HISTORY, MIN_RUNS, SCALES, GROUP_SCALES, FLOOR) == (30, 14, 5, 5.0, 4.0, 0.02)
    words = " ".join(TEXT.split())
    assert "the newest 30 runs" in words and "the newest 14 runs of the same preset" in words
    assert "five robust scales" in words and "at least 2 %" in words and "five earlier runs" in words
    assert nightly.MAX_AGE.total_seconds() == 24 * 3600
