"""The command line: what goes to standard output, how errors are told, which exit code."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.base import serialization
from deeppool.cli.app import app
from deeppool.cluster.cluster import find_cluster
from deeppool.device.datasheet import GPUS, GpuSheet
from deeppool.simulation.device.interference import Arrangement, Interference
from deeppool.units import format_seconds
from tests.command import Command
from tests.figures.records import two_layer_plan
from tests.strategies import make_graph, profile_from_times

pytestmark = pytest.mark.usefixtures("in_the_checkout")

EXAMPLE = "examples.two_branch:two_branch"
COMMANDS = sorted(command.name for command in app.registered_commands)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that commands are given: good ones, and wrong ones."""
    folder = tmp_path_factory.mktemp("files")
    graph = make_graph([(), (0,)])
    times = [lambda batch: 1e-3 * batch, lambda batch: 1e-4 * batch]
    dp.save(profile_from_times(graph, times, batch_sizes=(1, 2, 4, 8)), folder / "profile.json")
    dp.save(profile_from_times(graph, times, batch_sizes=(4, 8)), folder / "from4.json")
    dp.save(two_layer_plan(), folder / "plan.json")
    # VGG-16 has 138 million parameters.
    big = replace(two_layer_plan(1024), model="vgg16", input_shape=(3, 224, 224), parameter_bytes=4 * 138_000_000)
    dp.save(big, folder / "big.json")
    (folder / "truncated.json").write_text((folder / "profile.json").read_text()[:200])
    (folder / "foreign.json").write_text('{"nbformat": 4}')
    (folder / "not_a_model.py").write_text(
        "name = 'text'\ndef number():\n    return 3\ndef broken():\n    return 1 / 0\n"
    )
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a measured profile of the example, and plans of it for one rank and for two."""
    folder = tmp_path_factory.mktemp("tiny")
    measured = dp.profile(EXAMPLE, device="cpu", batch_sizes=[1, 2, 4], seconds=0.1)
    # A busy machine must not add its caution to what commands print.
    profile = replace(measured, checks=())
    dp.save(profile, folder / "profile.json")
    for ranks in (1, 2):
        dp.save(dp.plan(profile, find_cluster("loopback", ranks), 4), folder / f"plan{ranks}.json")
    return folder


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


# -- errors -----------------------------------------------------------------------------------------

ERRORS = {
    "unknown model": ("profile vgg99 -o new.json", "unknown model 'vgg99': known are"),
    "unknown module": ("profile nowhere:model -o new.json", "cannot import model 'nowhere:model'"),
    "no module": ("profile :model -o new.json", "cannot import model ':model'"),
    "not callable": ("profile not_a_model:name -o new.json", "not_a_model:name"),
    "not a model": ("profile not_a_model:number -o new.json", "returned a int, expected a torch.nn.Module"),
    "model that raises": ("profile not_a_model:broken -o new.json", "division by zero"),
    "no shape": (f"profile {EXAMPLE} --input-shape 0,64 -o new.json", f"input_shape of {EXAMPLE} is (0, 64), expected"),
    "wrong shape": (
        f"profile {EXAMPLE} --input-shape 1,32,32 -o new.json",
        "cannot take a sample of shape (1, 32, 32)",
    ),
    "no batch": (
        f"profile {EXAMPLE} --batch-sizes 0,1 -o new.json",
        "batch_sizes must be positive numbers, got [0, 1]",
    ),
    "no folder": (f"profile {EXAMPLE} -o absent/new.json", "there is no folder"),
    "more GPUs than samples": (
        "plan profile.json --gpus 8 --global-batch 4 -o new.json",
        "8 GPUs cannot share a global batch of 4",
    ),
    "no GPU": ("plan profile.json --gpus 0 --global-batch 4 -o new.json", "gpus must be at least 1, got 0"),
    "limit below 1": (
        "plan profile.json --gpus 2 --global-batch 4 --amplification-limit 0.5 -o new.json",
        "amplification_limit must be at least 1.0, got 0.5",
    ),
    "batch below the profile's": (
        "plan from4.json --gpus 8 --global-batch 8 -o new.json",
        "the profile of drawn has 4, 8",
    ),
    "unknown cluster": ("plan profile.json --gpus 2 --global-batch 4 --cluster moon", "no cluster 'moon'"),
    "truncated": ("plan truncated.json --gpus 2 --global-batch 4 -o new.json", "truncated.json: not JSON at line"),
    "foreign": ("plan foreign.json --gpus 2 --global-batch 4 -o new.json", "foreign.json: field 'format' is None"),
    "another kind": ("simulate profile.json --trace new.json", "field 'format' is 'deeppool/profile', expected"),
    "missing file": ("simulate absent.json --trace new.json", "cannot read absent.json: No such file"),
    "too many ranks": ("run big.json -o new.json", "the plan needs 1024 ranks of vgg16, about"),
    "a plan's batch": (
        "run plan.json --global-batch 8 -o new.json",
        "plan.json is a plan, which has its own global batch (leave out --global-batch)",
    ),
    "a plan's shape": (
        "run plan.json --input-shape 3,8,8 -o new.json",
        "plan.json is a plan, which has its own input shape (leave out --input-shape)",
    ),
    "no background batch": (
        "run plan.json --background examples.own_training:job --background-batch 0",
        "batch of a background job must be at least 1, got 0",
    ),
    "absent plan": ("run absent.json --background resnet18 -o new.json", "cannot read absent.json: No such file"),
    "other ranks": ("run plan.json --ranks 2 -o new.json", "plan.json is a plan for 4 ranks, --ranks is 2"),
    "ranks below 1": (f"run {EXAMPLE} --ranks 0 -o new.json", "got 0"),
    "no samples": (f"run {EXAMPLE} --global-batch 0 -o new.json", "got 0"),
    "more ranks than samples": (
        f"run {EXAMPLE} --ranks 3 --global-batch 2 -o new.json",
        "--ranks 3 cannot share --global-batch 2: each needs a sample",
    ),
    "unknown background": ("run big.json --background vgg99 -o new.json", "unknown model 'vgg99'"),
    "seconds and steps": ("run big.json --seconds 1 --steps 1 -o new.json", "give seconds or steps, not both"),
    "no folder for the record": ("run big.json -o absent/new.json", "there is no folder"),
    "no folder for the trace": ("run big.json --trace absent/new.json", "there is no folder"),
    "unknown notebook of a night": ("nightly burst -o new", "no notebook 'burst': there are burst-parallel"),
    "no notebooks": ("evaluate --notebooks . -o new", "there is no notebook in ."),
    "unknown notebook": ("evaluate burst -o new", "no notebook 'burst': there are burst-parallel"),
    "unknown parameter": (
        "evaluate burst-parallel -p sceonds=3 -o new",
        "01-burst-parallel.ipynb has no parameter 'sceonds': it has",
    ),
}


@pytest.mark.parametrize(("arguments", "phrase"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_one_line_and_exit_code_1_and_leaves_nothing(
    arguments: str, phrase: str, deeppool: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr("deeppool.processes.launcher.ManagedProcess", None)  # no process is started
    monkeypatch.chdir(files)
    before = contents(files)
    outcome = deeppool(*arguments.split())
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert phrase in outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert contents(files) == before


def test_the_plan_that_cannot_start_is_reported_with_its_memory(deeppool: Command, files: Path) -> None:
    error = deeppool("run", files / "big.json").err
    assert "of memory; this machine has" in error
    assert f"(plan with --gpus {len(os.sched_getaffinity(0))})" in error


def test_a_profile_that_cannot_be_saved_fails_before_it_measures(
    deeppool: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it measured")

    monkeypatch.setattr("deeppool.profiling.measure.profile.capture", never)
    outcome = deeppool("profile", EXAMPLE, "-o", tmp_path / "absent" / "profile.json")
    assert outcome.code == 1
    assert "there is no folder" in outcome.err


def test_an_interrupted_profile_says_where_its_measurements_are(
    deeppool: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deeppool.profiling.measure.bench.Bench.measure", interrupted)
    outcome = deeppool("profile", EXAMPLE, "-o", tmp_path / "profile.json")
    assert outcome.code == 1
    assert outcome.err.startswith("error: interrupted; the same command goes on from")
    assert outcome.err.count("\n") == 1, outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json.partial"]


@pytest.mark.parametrize(
    "arguments",
    [
        "plann",
        "plan",
        "plan profile.json --gpus two --global-batch 4",
        "plan profile.json --gpus 2 --global-batch 4 --fast",
        "plan profile.json --gpus 2 --global-batch 4 --network-model star",
        "profile vgg16",
        "profile vgg16 --batch-sizes 1,x -o new.json",
        "profile vgg16 --input-shape 3,a,b -o new.json",
        "run plan.json --policy wild",
        "evaluate -p seconds -o new",
        "evaluate burst-parallel",
        "nightly",
        "nightly -o new --budget soon",
        "nightly -o new --keep 0",
    ],
)
def test_bad_usage_is_exit_code_2_and_no_traceback(
    arguments: str, deeppool: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    before = contents(files)
    outcome = deeppool(*arguments.split())
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Usage: " in outcome.err
    assert "Traceback" not in outcome.err
    assert contents(files) == before


def test_the_process_reports_an_error_as_main_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deeppool.cli", "simulate", str(tmp_path / "absent.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: cannot read {tmp_path / 'absent.json'}: No such file or directory (check the path)\n"


def test_a_defect_is_reported_in_one_line_that_names_its_traceback(
    deeppool: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("deeppool.device.environment.environment", lambda: 1 / 0)
    outcome = deeppool("env")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: ZeroDivisionError in test_cli.py, line ")
    (kept,) = tmp_path.glob("deeppool-traceback-*.txt")
    assert str(kept) in outcome.err
    assert "ZeroDivisionError: division by zero" in kept.read_text()


# -- help -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_how_to_use_a_command(command: str, deeppool: Command) -> None:
    outcome = deeppool(command, "--help")
    text = " ".join(outcome.out.split())
    assert (outcome.code, outcome.err) == (0, "")
    assert f"deeppool {command} [OPTIONS]" in text
    assert f"Example: deeppool {command} " in text


def test_help_names_every_command_and_the_way_from_a_model_to_a_run(deeppool: Command) -> None:
    outcome = deeppool("--help")
    text = " ".join(outcome.out.split())
    assert outcome.code == 0
    assert {"env", "profile", "plan", "simulate", "run", "evaluate", "lab"} <= set(COMMANDS)
    for part in (*COMMANDS, "deeppool profile vgg16", "deeppool plan vgg16.json", "deeppool run plan.json"):
        assert part in text


@pytest.mark.slow
def test_the_version_and_the_short_help_stand_before_any_command(deeppool: Command) -> None:
    assert deeppool("--version").out == f"deeppool {dp.__version__}\n"
    assert deeppool("-h").out == deeppool("--help").out
    assert deeppool("plan", "-h").out == deeppool("plan", "--help").out


# -- output -----------------------------------------------------------------------------------------


def test_env_json_is_one_object() -> None:
    command = [str(Path(sys.executable).with_name("deeppool")), "env", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert found["format"] == "deeppool/environment"
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["versions"]["deeppool"]


def test_profile_json_is_one_object_and_equals_the_file(deeppool: Command, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    outcome = deeppool(
        "profile", EXAMPLE, "--device", "cpu", "--batch-sizes", "2", "--seconds", "0.1", "-o", path, "--json"
    )
    assert outcome.code == 0
    assert outcome.json == json.loads(path.read_text())
    assert outcome.json["format"] == "deeppool/profile"
    assert outcome.json["batch_sizes"] == [2]
    assert [x.name for x in tmp_path.iterdir()] == ["profile.json"]


def test_plan_json_has_the_fields_of_the_contract(deeppool: Command, tiny: Path, tmp_path: Path) -> None:
    outcome = deeppool(
        *("plan", tiny / "profile.json", "--gpus", 2, "--global-batch", 4, "--amplification-limit", 1.5),
        *("-o", tmp_path / "plan.json", "--json"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    plan = outcome.json
    assert plan == json.loads((tmp_path / "plan.json").read_text())
    expected = {
        *("gpus", "global_batch", "iteration_time", "data_parallel_iteration_time", "single_gpu_iteration_time"),
        *("gpu_seconds", "amplification", "amplification_limit", "limit_scope", "exempt_layers", "optimality"),
        *("search_time", "layers"),
    }
    assert expected <= set(plan)
    assert (plan["gpus"], plan["global_batch"], plan["amplification_limit"]) == (2, 4, 1.5)
    for layer in plan["layers"]:
        assert {"name", "gpu_count", "gpus", "time", "amplification"} <= set(layer)
    # All-reduces may overlap the backward pass, which is hidden time of the layers.
    layers = plan["layers"]
    computing = sum(layer["forward"] + layer["backward"] + layer["update"] for layer in layers)
    whole = sum(layer["time"] + layer["update"] for layer in layers)
    if all(layer["gpu_count"] == 1 for layer in layers):
        assert plan["iteration_time"] == pytest.approx(whole)
    assert computing <= plan["iteration_time"] * (1 + 1e-9)
    assert plan["iteration_time"] <= whole * (1 + 1e-9)


def test_plan_without_json_says_why_each_layer_got_its_gpus(deeppool: Command, tiny: Path) -> None:
    outcome = deeppool("plan", tiny / "profile.json", "--gpus", 2, "--global-batch", 4)
    assert (outcome.code, outcome.err) == (0, "")
    for layer in serialization.read_object(tiny / "profile.json")["graph"]["layers"]:
        assert layer["name"] in outcome.out


def test_simulate_json_conserves_gpu_seconds_and_writes_a_trace(deeppool: Command, tiny: Path, tmp_path: Path) -> None:
    outcome = deeppool(
        *("simulate", tiny / "plan2.json", "--background", tiny / "profile.json"),
        *("--trace", tmp_path / "trace.json", "--json"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    found = outcome.json
    assert found["gpu_seconds"] + found["idle_gpu_seconds"] == pytest.approx(2 * found["iteration_time"])
    assert found["background_samples"] >= 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_simulate_prices_a_background_with_interference(deeppool: Command, tiny: Path, tmp_path: Path) -> None:
    halves = Arrangement("normal", ((0.5,),), ((0.5,),))
    path = serialization.write(
        Interference("a processor", "2026-11-21", "made up", (1.0,), (1e-3,), (halves,)), tmp_path / "interference.json"
    )
    beside = ("simulate", tiny / "plan2.json", "--background", tiny / "profile.json", "--interference", path)
    outcome = deeppool(*beside, "--policy", "naive", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(gpu["slowdown"] for gpu in outcome.json["gpus"]) > 0.2
    outcome = deeppool(*beside)
    assert outcome.code == 1
    assert "no interference was measured for lowest (choose one of: normal)" in outcome.err
    assert deeppool(*beside[:4], "--policy", "naive").code == 2
    assert deeppool(*beside[:2], "--interference", path).code == 2


@pytest.mark.processes
def test_run_json_has_the_fields_of_the_contract(deeppool: Command, tiny: Path, tmp_path: Path) -> None:
    outcome = deeppool(
        *("run", tiny / "plan1.json", "--background", EXAMPLE, "--steps", 2),
        *("-o", tmp_path / "run.json", "--trace", tmp_path / "trace.json", "--json"),
    )
    assert outcome.code == 0, outcome.err
    run = outcome.json
    assert run == json.loads((tmp_path / "run.json").read_text())
    assert {"policy": "priority", "ranks": 1, "device": "cpu", "backend": "gloo"}.items() <= run.items()
    front, back = run["foreground"], run["background"]
    for phase in (front, front["alone"]):
        assert {"p50", "p99", "mean"} <= set(phase["iteration_time"])
        assert phase["throughput"] > 0
        assert phase["iteration_time"]["count"] == 2
    assert "slowdown" in front
    assert {"throughput", "alone_throughput", "harvest"} <= set(back)
    names = {event["args"].get("name") for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {f"{EXAMPLE}, planned (predicted)", f"{EXAMPLE}, measured, an iteration near the median (measured)"} <= names


@pytest.mark.processes
def test_the_text_of_a_run_ends_with_verdicts_evidence_and_the_next_steps(
    deeppool: Command, tiny: Path, tmp_path: Path
) -> None:
    outcome = deeppool("run", tiny / "plan1.json", "--steps", 3, "-o", tmp_path / "run.json")
    assert outcome.code == 0, outcome.err
    _, card = outcome.out.split("\n\n")
    findings, _, steps = card.partition("\nNext:\n")
    verdicts = dict(line.split()[:2] for line in findings.replace("burst ", "burst_").splitlines())
    assert set(verdicts) == {"burst_parallelism", "collocation"}
    assert set(verdicts.values()) <= {"yes", "no", "unknown"}
    measured = dp.load(tmp_path / "run.json").foreground.alone.iteration_time.p50
    assert f"an iteration takes {format_seconds(measured)}, planned " in findings
    # One rank is data parallelism of one.
    assert "DDP is predicted to take 1.00 times as long as the plan" in findings
    assert steps.strip()


# -- estimates --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_estimate_needs_no_gpu_and_its_plan_says_that_it_is_estimated(deeppool, tmp_path):
    path = tmp_path / "profile.json"
    found = deeppool(
        "estimate", EXAMPLE, "--input-shape", "3,32,32", "--gpu", "h200", "--batch-sizes", "1,32", "-o", path, "--json"
    ).json
    assert (found["provenance"], found["device_name"]) == ("estimated", "NVIDIA H200 SXM")
    assert found == json.loads(path.read_text())
    plan = deeppool("plan", path, "--gpus", 8, "--global-batch", 32)
    assert plan.code == 0
    # In a cluster of such GPUs, unless another is named.
    assert "(dgx-h200)" in plan.out
    assert "layer times estimated for NVIDIA H200 SXM" in " ".join(plan.out.split())


def test_estimate_lists_the_gpus_that_it_knows(deeppool):
    listed = deeppool("estimate", "--gpu", "list")
    assert listed.code == 0
    assert [line.split(":")[0] for line in listed.out.splitlines()] == list(GPUS)


@pytest.mark.parametrize("arguments", [("--gpu", "list", "--json"), ("--json", "vgg16", "--gpu", "list", "-o", "x")])
def test_estimate_lists_the_gpus_as_one_json_object(deeppool, tmp_path, arguments):
    listed = deeppool("estimate", *arguments)
    assert listed.code == 0
    sheets = [serialization.from_json(sheet, GpuSheet, "listed") for sheet in listed.json["gpus"]]
    assert sheets == list(GPUS.values())


def test_an_estimate_for_a_data_sheet_of_ones_own(deeppool, tmp_path):
    own = dp.save(replace(GPUS["l4"], name="own", title="A GPU of my own"), tmp_path / "own.json")
    found = deeppool("estimate", EXAMPLE, "--gpu", own, "--batch-sizes", "1", "-o", tmp_path / "x.json")
    assert found.code == 0
    assert dp.load(tmp_path / "x.json").device_name == "A GPU of my own"


def test_estimate_for_an_unknown_gpu_is_one_line_and_leaves_no_file(deeppool, tmp_path):
    found = deeppool("estimate", EXAMPLE, "--gpu", "k80", "-o", tmp_path / "x.json")
    assert (found.code, found.out, found.err.count("\n")) == (1, "", 1)
    assert "must be one of a100-40, a100-80, h100, h200" in found.err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_that_the_import_of_torch_would_drop_comes_after_it(tmp_path: Path) -> None:
    # torch's C code imports numpy, and drops the exceptions of that import.
    dropping = "import signal\ntry:\n    signal.raise_signal(signal.SIGTERM)\nexcept BaseException:\n    pass\n"
    (tmp_path / "torch.py").write_text(dropping)
    waiting = (
        "import signal\nfrom deeppool.cli.interrupts import handle_interrupts\nhandle_interrupts()\n"
        "try:\n    import torch\n    while signal.getitimer(signal.ITIMER_REAL)[0]:\n        signal.pause()\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    told = subprocess.check_output([sys.executable, "-c", waiting], env=os.environ | path, text=True)
    assert told == "interrupted\n"


ABORTING = """
import signal, sys, torch
from torch._library.simple_registry import singleton
from deeppool.base.interruption import interruptible
from deeppool.cli.interrupts import handle_interrupts

def find_interrupted(name):
    if sys._getframe(1).f_code.co_name == "find_torch_dispatch_rule":
        singleton.find = find
        signal.raise_signal(signal.SIGTERM if command else signal.SIGINT)
    return find(name)

model, inputs = torch.nn.Linear(3, 4), (torch.ones(2, 3),)

@interruptible
def export():
    torch.export.export(model, inputs)
    signal.pause()

torch.export.export(model, inputs)
if command:
    handle_interrupts()
find, singleton.find = singleton.find, find_interrupted
try:
    export()
except KeyboardInterrupt:
    print("interrupted")
"""
"""Is interrupted where torch's C++ code looks for the rule of an operator in an export."""


@pytest.mark.parametrize("command", [True, False])
def test_an_interrupt_that_would_abort_the_process_in_the_code_of_torch_comes_after_it(command: bool) -> None:
    code = f"{command = }\n{ABORTING}"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "interrupted\n"), ended.stderr


DROPPED = """
import os, signal
from deeppool.cli.interrupts import handle_interrupts, ignore_interrupts
handle_interrupts()
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGTERM))
try:
    if os.fork() == 0:
        os._exit(0)
    THEN
except KeyboardInterrupt:
    print("interrupted")
"""
"""Is interrupted in a function whose exceptions Python drops, and then does something else."""


@pytest.mark.parametrize(
    ("then", "printed"),
    [
        ("while signal.getitimer(signal.ITIMER_REAL)[0]: signal.pause()", "interrupted\n"),
        ("ignore_interrupts(); print(signal.getitimer(signal.ITIMER_REAL))", "(0.0, 0.0)\n"),
    ],
    ids=["goes on", "ends"],
)
def test_an_interrupt_that_python_drops_comes_again(then: str, printed: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DROPPED.replace("THEN", then)], check=True, capture_output=True, text=True
    )
    assert (ended.stdout, ended.stderr) == (printed, "")


OTHERWISE = """
import signal
import deeppool.cli.app
from deeppool.cli import main

def app():
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        raise ValueError("KeyboardInterrupt: ") from None

deeppool.cli.app.app = app
main()
"""


def test_an_interrupt_of_which_c_code_makes_another_exception_is_one() -> None:
    # As pydantic's does, while it prepares the reading of a file.
    ended = subprocess.run([sys.executable, "-c", OTHERWISE], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, "error: interrupted\n")


@pytest.mark.parametrize("what", ["SIGINT", "SIGTERM"])
def test_an_interrupt_while_the_commands_are_imported_is_one_line(what: str, tmp_path: Path) -> None:
    interrupting = f"import signal\nsignal.raise_signal(signal.{what})\n"
    (tmp_path / "typer.py").write_text(interrupting)
    # What runs the tests may ignore Ctrl-C.
    command = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from deeppool.cli import main; main()"
    )
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.getcwd()}"}
    ended = subprocess.run(
        [sys.executable, "-c", command], env=os.environ | path, check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "error: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "at_the_end",
    [
        "atexit.register(interrupt)",
        "threading.Thread(target=lambda: (threading.main_thread().join(), interrupt())).start()",
    ],
    ids=["at exit", "while threads are waited for"],
)
def test_an_interrupt_of_a_command_that_is_over_changes_nothing(at_the_end: str, what: str, tmp_path: Path) -> None:
    # Found by the soak: what closes the fork server at exit was interrupted, and a traceback followed the error.
    ending = f"""
import atexit, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from deeppool.cli import main

def interrupt():
    os.kill(os.getpid(), signal.{what})

{at_the_end}
sys.argv = ["deeppool", "explain", {str(tmp_path / "plan.json")!r}]
main()
"""
    ended = subprocess.run([sys.executable, "-c", ending], check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
