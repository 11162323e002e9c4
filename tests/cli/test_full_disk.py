"""A result is printed before it is saved: a disk that is full by then costs the file, not the measurement."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

import deeppool as dp
from deeppool.collocation.interference import measure as interference_measure
from deeppool.profiling.network import measure as network_measure
from deeppool.runs import launch, train
from deeppool.simulation.device.interference import Arrangement, Interference
from tests.cluster.test_measured_network import RISING
from tests.command import Command
from tests.figures.records import run_of, training_of
from tests.planning.replanning.test_profile_correction import run_with
from tests.strategies import make_graph, profile_from_times

pytestmark = pytest.mark.usefixtures("in_the_checkout")
PLANNED = "--gpus 4 --global-batch 16 --cluster dgx-a100"
MODEL = "examples.two_branch:two_branch --batch-sizes 1"

CLUSTER = dp.Cluster(4, measured=RISING)
INTERFERENCE = Interference(
    "a device", "2026-11-22", "by hand", (1.0,), (1e-3,), (Arrangement("lowest", ((0.9,),), ((0.1,),)),)
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    times = profile_from_times(make_graph([(), (0,)]), [lambda batch: 0.5e-3 * batch, lambda batch: 8e-3])
    dp.save(times, folder / "profile.json")
    made = dp.plan(times, dp.Cluster(gpus=4), 16)
    dp.save(made, folder / "plan.json")
    dp.save(run_with(made), folder / "run.json")
    return folder


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a disk that is full as soon as something is measured."""
    folder = tmp_path / "full"
    folder.mkdir()
    replace = os.replace

    def replace_elsewhere(source: str, target: str) -> None:
        # The log of a measurement begins before it.
        if Path(target).parent == folder and not Path(target).name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_elsewhere)
    return folder


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes processes and minutes was measured before."""
    monkeypatch.setattr(launch, "launch", lambda *_, **__: run_of())
    monkeypatch.setattr(train, "train", lambda *_, **__: training_of())
    monkeypatch.setattr(network_measure, "measure_network", lambda *_, **__: CLUSTER)
    monkeypatch.setattr(interference_measure, "measure_interference", lambda *_, **__: INTERFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "run {files}/plan.json --steps 1 -o {full}/found.json",
        "run {files}/plan.json --steps 1 --trace {full}/found.json",
        "train {files}/plan.json tests.execution.soak_job:job --steps 1 -o {full}/found.json",
        f"profile {MODEL} --seconds 0.1 -o {{full}}/found.json",
        f"estimate {MODEL} --gpu h200 -o {{full}}/found.json",
        "network -o {full}/found.json",
        "interference -o {full}/found.json",
        f"plan {{files}}/profile.json {PLANNED} -o {{full}}/found.json",
        f"frontier {{files}}/profile.json {PLANNED} -o {{full}}/found.json",
        f"frontier {{files}}/profile.json {PLANNED} --background {{files}}/profile.json -o {{full}}/found.json",
        "scaling {files}/profile.json --gpus 4 --global-batch 16 -o {full}/found.json",
        "simulate {files}/plan.json -o {full}/found.json",
        "simulate {files}/plan.json --trace {full}/found.json",
        "replan {files}/plan.json {files}/profile.json {files}/run.json -o {full}/found.json",
    ],
)
def test_the_result_is_printed_and_then_one_error(
    command: str, files: Path, full: Path, tmp_path: Path, deeppool: Command
) -> None:
    code, out, error = deeppool(*command.format(files=files, full=full).split(), "--json")
    assert code == 1
    last = error.splitlines()[-1]
    assert last == f"error: cannot write {full}/found.json: No space left on device (choose another path)"
    assert "Traceback" not in error
    assert [path.name for path in full.iterdir()] in ([], ["found.json.partial"])
    # What the command prints where there is room.
    code, expected, _ = deeppool(*command.format(files=files, full=tmp_path).split(), "--json")
    assert code == 0
    assert json.loads(out).keys() == json.loads(expected).keys()
    assert json.loads(out)["format"] == json.loads(expected)["format"]


@pytest.mark.slow
def test_a_closed_pipe_costs_no_file(files: Path, tmp_path: Path) -> None:
    """A reader that ends early, such as head."""
    command = "from deeppool.cli import main; import sys; sys.argv[0] = 'deeppool'; main()"
    arguments = ["plan", files / "profile.json", *PLANNED.split(), "-o", tmp_path / "plan.json"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        subprocess.run([sys.executable, "-c", command, *map(str, arguments)], stdout=pipe, check=False)
    assert dp.load(tmp_path / "plan.json").gpus == 4


def test_a_full_disk_under_standard_output_costs_no_file_and_is_one_error(files: Path, tmp_path: Path) -> None:
    arguments = ["plan", files / "profile.json", *PLANNED.split(), "-o", tmp_path / "plan.json"]
    command = [sys.executable, "-m", "deeppool.cli", *map(str, arguments)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: cannot print the result: No space left on device (print it to another disk)"
    ]
    assert dp.load(tmp_path / "plan.json").gpus == 4


def test_a_profile_is_measured_to_its_end_although_its_log_cannot_be_written(
    files: Path, tmp_path: Path, deeppool: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Path.open

    def open_with_room(path: Path, mode: str = "r", *rest: object, **more: object) -> IO:
        if path.suffix == ".partial" and mode == "a":
            raise OSError(28, "No space left on device")
        return plain(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", open_with_room)
    code, out, _ = deeppool(*f"profile {MODEL} --seconds 0.1 -o {tmp_path}/found.json --json".split())
    assert (code, json.loads(out)["format"]) == (0, "deeppool/profile")
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
