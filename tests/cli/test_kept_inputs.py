"""No command writes its result over a file that it reads."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deeppool.cli.app import app
from deeppool.errors import DocumentError, InvalidValueError

COMMANDS = {
    "advise profile.json --gpus 2 --global-batch 8 -o": "profile.json",
    "advise vgg16-cpu --gpus 2 --global-batch 8 --cluster cluster.json --html": "cluster.json",
    "estimate vgg16 --gpu gpu.json -o": "gpu.json",
    "profile --compare profile.json vgg16-cpu -o": "profile.json",
    "profile --compare vgg16-cpu profile -o": "profile",
    "plan profile.json --gpus 2 --global-batch 8 -o": "profile.json",
    "plan profile --gpus 2 --global-batch 8 -o": "profile",
    "plan vgg16-cpu --gpus 2 --global-batch 8 --background profile.json -o": "profile.json",
    "frontier profile.json --gpus 2 --global-batch 8 -o": "profile.json",
    "scaling profile.json --gpus 2 --global-batch 8 -o": "profile.json",
    "explain plan.json --model-explorer": "plan.json",
    "simulate plan.json --perfetto": "plan.json",
    "simulate plan.json --against run.json -o": "run.json",
    "run plan.json -o": "plan.json",
    "run plan.json --perfetto": "link.json",
    "train plan.json package.module:job --steps 1 -o": "plan.json",
    "train plan.json package.module:job --steps 1 --profile profile.json -o": "profile.json",
    "replan plan.json profile.json run.json -o": "profile.json",
    "replan plan.json profile.json run.json --output": "run.json",
    "cluster simulate trace.json --gpus 2 -o": "trace.json",
    "cluster import helios jobs.csv --profile profile.json --gpus 2 -o": "profile.json",
    "cluster import helios jobs.csv --profile vgg16-cpu --gpus 2 -o": "jobs.csv",
}
"""The file that each would replace."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that no command can read."""
    monkeypatch.chdir(tmp_path)
    for name in ("profile.json", "profile", "cluster.json", "gpu.json", "plan.json", "run.json", "trace.json"):
        Path(name).write_text("kept")
    Path("jobs.csv").write_text("kept")
    Path("link.json").symlink_to("plan.json")
    return tmp_path


def command(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


@pytest.mark.parametrize(("line", "file"), COMMANDS.items())
def test_a_result_does_not_replace_an_input(line: str, file: str) -> None:
    outcome = command(f"{line} {file}")
    assert isinstance(outcome.exception, InvalidValueError), outcome.output
    option = line.rsplit(maxsplit=1)[-1].replace("--output", "-o")
    assert str(outcome.exception).startswith(f"{option} {file} would replace a file that this command reads")
    assert Path(file).read_text() == "kept"


@pytest.mark.parametrize("quantity", ["gpus", "amplification", "time"])
def test_node_data_beside_a_graph_do_not_replace_an_input(quantity: str) -> None:
    Path("plan.json").rename(f"graph.{quantity}.json")
    outcome = command(f"explain graph.{quantity}.json --model-explorer graph.json")
    assert isinstance(outcome.exception, InvalidValueError), outcome.output
    assert str(outcome.exception) == (
        f"--model-explorer graph.json would replace a file that this command reads, graph.{quantity}.json (give "
        "--model-explorer another file)"
    )
    assert Path(f"graph.{quantity}.json").read_text() == "kept"
    assert not Path("graph.json").exists()


@pytest.mark.parametrize(
    "line",
    [
        "replan plan.json profile.json run.json -o plan.json",
        "plan profile.json --gpus 2 --global-batch 8 -o plan.json",
        "estimate profile --gpu unknown -o profile",
    ],
)
def test_other_files_may_be_replaced(line: str) -> None:
    assert "would replace" not in str(command(line).exception)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("explain plan.json --model-explorer .", "cannot write .: it is a folder"),
        pytest.param(
            "show plan.json --html loop.json",
            "cannot write loop.json: Symlink loop",
            marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python replaces such a link"),
        ),
    ],
)
def test_what_cannot_be_written_is_told_in_a_line(line: str, told: str) -> None:
    Path("loop.json").symlink_to("loop.json")
    done = command(line)
    assert isinstance(done.exception, DocumentError)
    assert str(done.exception).startswith(told)
