"""An option that would have no effect beside the others is refused, also with the value of its default."""

from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace
from tests.command import Command
from tests.figures.records import two_layer_plan
from tests.strategies import make_graph, profile_from_times

PLAN = two_layer_plan()
PROFILE = profile_from_times(make_graph([(), (0,)]), [lambda b: 1e-3 * b, lambda b: 8e-3])
CHECK = IterationCheck(4, 0.012, 0.012, 0.05, 9)
JOB = TraceJob(name="front", role="foreground", source="net.json", iterations=50, gpus=4, batch=16)
TRACE = "trace.csv", "--gpus", "4", "-o", "workload.json", "--profile", "net.json"
CLUSTER = "cluster simulate trace.json --gpus 4"
NO_PARTNER = "is of GPUs that two jobs share, and --strategy"
NOTHING_RANDOM = "is for random deviations, and there are none"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a plan, profiles with and without noise, and workloads."""
    dp.save(PLAN, tmp_path / "plan.json")
    dp.save(PROFILE, tmp_path / "net.json")
    dp.save(replace(PROFILE, checks=(CHECK,)), tmp_path / "noisy.json")
    dp.save(replace(PROFILE, checks=(replace(CHECK, spread=0.0),)), tmp_path / "still.json")
    dp.save(WorkloadTrace("one", "by hand", (JOB,)), tmp_path / "trace.json")
    (tmp_path / "trace.csv").write_text("job_id,gpu_num,submit_time,duration\n1,2,2020-06-09 18:00:00,5\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("simulate plan.json --seed 0", f"--seed {NOTHING_RANDOM} (give --jitter, --noise or --straggling)"),
        ("simulate plan.json --iterations 9", f"--iterations {NOTHING_RANDOM}"),
        ("simulate plan.json --speed 0=0.5 --iterations 9", f"--iterations {NOTHING_RANDOM}"),
        ("simulate plan.json --noise still.json --seed 3", f"--seed {NOTHING_RANDOM}"),
        ("simulate plan.json --jitter 0.1 --delay 2", "--delay is how late a straggler is (give --straggling too)"),
        (f"{CLUSTER} --seed 3", f"--seed {NOTHING_RANDOM} (give --jitter or --straggling)"),
        (f"{CLUSTER} --delay 1.0", "--delay is how late a straggler is (give --straggling too)"),
        (f"{CLUSTER} --strategy data-parallel --policy paced", f"--policy {NO_PARTNER} data-parallel has none"),
        (f"{CLUSTER} --strategy burst-parallel --interference pairs.json", f"--interference {NO_PARTNER}"),
        (f"{CLUSTER} --strategy partition --foreground-gpus 2 --max-slowdown 0.1", f"--max-slowdown {NO_PARTNER}"),
        (f"cluster import helios {' '.join(TRACE)} --seed 3", "--seed is of the draw of models, and there is one"),
        (
            "plan net.json --gpus 2 --global-batch 8 --limit-scope iteration",
            "--limit-scope is of a limit (give --amplification-limit too)",
        ),
        ("train plan.json job:job --steps 3 --keep 2", "--keep needs --checkpoints"),
        ("train plan.json job:job --steps 3 --checkpoint-every 2", "--checkpoint-every needs --checkpoints"),
        (
            "train plan.json job:job --steps 3 --background resnet18 --policy none --background-batch 2",
            "--background-batch is for a background job, and --policy none runs none",
        ),
        (
            "run plan.json --background resnet18 --policy none --gpu-price 2",
            "--gpu-price is for a background job, and --policy none runs none",
        ),
        (
            "advise net.json --gpus 2 --global-batch 8 --device h100",
            "--device is for a model, and the profile net.json has its own (leave it out)",
        ),
        ("advise vgg16-h200 --gpus 2 --global-batch 8 --precision tf32", "--precision is for a model"),
    ],
)
def test_it_is_bad_usage(folder: Path, deeppool: Command, command: str, told: str) -> None:
    code, out, err = deeppool(*command.split())
    assert (code, out) == (2, "")
    # The message is drawn in a box, line by line.
    assert told in " ".join(err.replace("│", " ").split())


@pytest.mark.parametrize(
    "command",
    [
        "simulate plan.json --noise noisy.json --seed 3 --iterations 9",
        "simulate plan.json --straggling 0.5 --delay 2 --seed 3 --iterations 9",
        f"{CLUSTER} --straggling 0.5 --delay 2 --seed 3",
        f"cluster import helios {' '.join(TRACE)} --profile noisy.json --seed 3",
        "plan net.json --gpus 2 --global-batch 8 --limit-scope layer --amplification-limit 2",
    ],
)
def test_it_is_taken_where_it_has_one(folder: Path, deeppool: Command, command: str) -> None:
    assert deeppool(*command.split()).code == 0
