"""Files that commit c05f1f7 wrote load in every later version: one of each kind in ``recorded/``, and some figures.

They were made by that version's own functions: a model of five layers, captured, profiled, planned and run on two
ranks of a CPU beside MobileNet v2, a training of four updates, and what is derived from these. A kind that is added
later is recorded when it is released. In frontiers and advice the times of data parallelism are where they are since.
"""

import re
from pathlib import Path
from typing import Any

import pytest

import deeppool
from deeppool.base import serialization
from deeppool.execution.checkpoint import Checkpoint
from deeppool.records import files

RECORDED = Path(__file__).parent / "recorded"
INTERNAL = {"checkpoint", "joined-ray", "run-under-way", "schedule"}
"""Records in deeppool's own folders and messages, which users do not load."""
FIGURES: dict[str, dict[str, Any]] = {
    "advice": {
        "plan.comparison.data_parallel.2.seconds": 0.030000000000000002,
        "findings.1.gain": 1.3333333333333335,
        "findings.3.verdict": "yes",
        "findings.4.gain": None,
    },
    "calibration": {"networks": 4, "costs.6.family": "convolution", "costs.6.per_byte": 3.101979775282632e-12},
    "cluster": {"gpus": 8, "name": "a small one", "gpus_per_node": 4, "inside.bandwidth": 3e11, "memory": 4e10},
    "cluster-comparison": {
        "trace": "two",
        "cluster.name": "dgx-a100",
        "results.0.strategy": "data-parallel",
        "results.0.makespan": 0.08553602666889588,
        "results.1.foreground_gpus": 1,
    },
    "cluster-job": {"job": 3, "state": "running", "gpus": (0, 1), "progress.loss": 2.25, "progress.update": 12},
    "cluster-simulation": {
        "makespan": 0.08252084931782579,
        "jobs.0.name": "front",
        "jobs.0.samples": 400.0,
        "jobs.1.role": "background",
    },
    "cluster-status": {"address": "10.0.0.1:6379", "gpus.0.foreground": 3, "jobs.0.machines": ("10.0.0.1", "10.0.0.2")},
    "collocated-plan": {
        "background_batch": 4,
        "interference": "a device, 2026-11-21",
        "gpus.0.iteration_time": 0.001995874599845554,
        "gpus.0.slowdown": 0.2499999999999991,
        "gpus.0.sharing.priority": "lowest",
    },
    "collocated-simulation": {"iterations": 50, "harvest": 0.7440519694151918, "slowdown": 1.6712809767272208},
    "critical-batch": {"least_steps": 10_000, "critical_batch": 2048},
    "crossover": {"jobs.0.name": "Sequential", "jobs.0.updates": 3, "jobs.1.losses.2": 1.4793426394462585},
    "crossover-comparison": {
        "ways.0.name": "crossover",
        "ways.0.predicted": 0.0031922770003802725,
        "ways.0.seconds.0": 0.0036784779986192007,
    },
    "diff": {
        "request.0.after": 1.1,
        "iteration_time.change": 0.0002548756800475828,
        "layers.0.name": "left",
        "layers.0.before.gpus": (1,),
    },
    "environment": {"cores": 2, "memory": 2**33, "gpu_abilities.0.mig": "no: not split", "gpu_problem": None},
    "evaluation": {"numbers.0.value": 1.5, "numbers.0.paper": "1.2 to 2.3", "checks.0.holds": True},
    "fidelity": {
        "update_time": 0.00039493499980380875,
        "quantities.0.simulated": 0.004134956684683019,
        "quantities.3.measured": 1.375942619952623,
        "conditions.jitter": 1.0897479001511454,
    },
    "field-changes": {"kind": "cluster", "changes.0.path": "gpus", "changes.0.after": 16, "changes.1.after": None},
    "fixed-samples": {"samples": 1_000_000, "largest_batch": 8192},
    "frontier": {
        "layers": ("conv1", "left", "right", "add", "fc"),
        "points.0.iteration_time": 0.0015966996798764447,
        "points.0.gpu_counts": (1, 1, 1, 1, 2),
        "points.0.memory": 509720,
    },
    "gpu": {"title": "NVIDIA L4", "multiprocessors": 60, "cache": 48e6, "reach.bandwidth": 0.78},
    "interference": {"intensities": (1.0,), "arrangements.2.name": "lowest", "arrangements.2.background": ((0.4,),)},
    "measured-ways": {
        "repetitions": 2,
        "ways.0.samples": 8,
        "ways.1.seconds.0": 0.02590193200012436,
        "ways.1.technique": "two waves",
        "ways.1.timeline.rows": ("rank 0 tick", "rank 0 tock", "rank 1 tick", "rank 1 tock"),
        "ways.2.timeline.provenance": "measured",
    },
    "measured-transfers": {
        "compute.0": 0.00031574100012221606,
        "cluster.measured.ranks": 2,
        "ways.0.bucket": 26_214_400.0,
        "ways.0.plan": None,
        "ways.1.seconds.0": 0.001773124999999709,
        "ways.1.plan.transfers.0.gradients": ("2.bias", "2.weight", "0.bias", "0.weight"),
    },
    "night": {"preset": "quick", "outcomes.0.state": "done", "outcomes.0.observations.0.value": 1.5},
    "pairing": {"groups.0.1.compute": 0.0016705190000720904, "memory": 8e9, "refused": ()},
    "plan": {
        "model": "Tiny",
        "graph_fingerprint": "adbf6d50e0e47434",
        "iteration_time": 0.0015966996798764447,
        "amplification_limit": 2.0,
        "layers.0.forward": 0.0003669040800014045,
        "layers.1.gpus": (1,),
        "layers.4.gpu_count": 2,
    },
    "price-list": {
        "iteration_time": 0.0015966996798764447,
        "layers.0.counts.1.time": 0.000534310026680476,
        "layers.0.counts.1.iteration_time_change": 1.2319994345912685e-07,
    },
    "plan-check": {"gpus": 2, "iteration_time": 0.0015872597864865707, "decided": False, "optimality": "exact"},
    "profile": {
        "graph.layers.0.activation_bytes": 11264,
        "graph.layers.3.predecessors": (1, 2),
        "graph.layers.3.signature": "25852de2d10db6ad",
        "batch_sizes": (1, 2, 4),
        "provenance": "measured",
    },
    "profile-comparison": {
        "compared": 15,
        "iteration_before": (0.0009077272800095671, 0.0016644920399266992, 0.0016704356000445842),
    },
    "profile-list": {
        "profiles.0.name": "tiny-cpu",
        "profiles.0.batch_sizes": (1, 2, 4),
        "profiles.0.deviation": 0.3337588025776572,
    },
    "replan": {
        "corrections.0.layers": ("conv1",),
        "corrections.0.measured": 0.0009457709993512253,
        "corrections.4.forward_ratio": 2.3124337222508653,
    },
    "run": {
        "plan_iteration_time": 0.0015966996798764447,
        "policy": "priority",
        "foreground.iteration_time.p99": 0.08752037720010777,
        "foreground.alone.throughput": 166.71539225012458,
        "foreground.slowdown": -0.49850335818143254,
        "foreground.idle_share": (0.614356503752675, 0.7028321773521902),
    },
    "run-comparison": {
        "settings.0": ("policy", "priority", "naive"),
        "figures.0.before": 0.024064803377778946,
        "figures.0.noise": 0.021325661057178775,
    },
    "scaling": {
        "single_gpu_time": 4758.548675004749,
        "points.0.steps": 5_130_000,
        "points.0.time_to_accuracy": 8569.334628228717,
    },
    "shared-cluster": {
        "background_sample_time": 0.00041760890001114604,
        "points.0.strategy": "burst parallel",
        "points.0.throughput": 6419.207342638368,
    },
    "sharing-answer": {
        "point.gpus": 2,
        "point.amplification": 1.0112735424034751,
        "point.throughput": 6919.6990109898325,
        "optimality": "exact",
    },
    "simulation": {
        "iteration_time": 0.0015966996798764447,
        "background_samples": 0.9394305596470077,
        "timeline.spans.0.end": 0.0003669040800014045,
        "timeline.spans.2.kind": "reshard",
    },
    "steps-table": {"pairs": ((64, 40_000), (256, 10_000), (4096, 5_000))},
    "telemetry": {"samples.1.gpus.0.energy": 50.0, "samples.2.cores": (0.5, 0.5), "cores": (0, 3)},
    "training": {
        "iteration_time.p50": 0.0705702674999884,
        "metrics.3.loss": 2.3684792518615723,
        "metrics.0.samples_per_second": 69.33261731218367,
        "checkpoint": "checkpoints/step-000004",
    },
    "transfer-comparison": {
        "servers": 1,
        "methods.0.plan.transfers.0.pattern": "parameter-server-push",
        "methods.6.method": "Caramel",
        "methods.6.plan.transfers.0.gradients": ("layer1.weight",),
    },
    "transfer-plan": {"parts.1.backward": 0.003, "transfers.0.size": 4_000_000, "gap_bound": 0.0002000012},
    "timeline": {"provenance": "predicted", "gpus": 2, "spans.0.name": "conv1", "spans.0.end": 0.0003669040800014045},
    "trials": {
        "steps": 12,
        "results.0.configuration": {"lr": 0.5, "nesterov": True, "init": None},
        "best.final_loss": 1.25,
        "results.2.ended": "its loss is nan after step 3",
    },
    "verdict": {"moved.0.band": 0.16406664703440077, "moved.0.nights": 8, "unmet.0.held": "2026-11-08", "judged": 1},
    "workload-trace": {"jobs.0.iterations": 50, "jobs.0.amplification_limit": 1.5, "jobs.1.iterations": None},
}


def figure(record: Any, path: str) -> Any:
    for part in path.split("."):
        record = record[int(part)] if part.isdecimal() else getattr(record, part)
    return record


@pytest.mark.parametrize("kind", FIGURES)
def test_a_recorded_file_loads_with_its_figures(kind: str, tmp_path: Path) -> None:
    record = files.load(RECORDED / f"{kind}.json")
    assert {path: figure(record, path) for path in FIGURES[kind]} == FIGURES[kind]
    assert files.load(files.save(record, tmp_path / "again.json")) == record


def test_a_recorded_checkpoint_loads_with_its_figures() -> None:
    found = serialization.read(RECORDED / "checkpoint.json", Checkpoint)
    assert (found.graph_fingerprint, found.updates, found.ranks, found.loss_scale) == ("f5c72d35f44f77a6", 4, 2, 1.0)


def test_every_record_is_a_kind_of_file() -> None:
    sources = (path.read_text() for path in Path(deeppool.__file__).parent.rglob("*.py"))
    kinds = {kind for source in sources for kind in re.findall(r'^    KIND: ClassVar\[str\] = "(.+)"$', source, re.M)}
    assert kinds == {*files.KINDS, *INTERNAL}


def test_every_kind_of_file_is_recorded() -> None:
    assert set(FIGURES) == set(files.KINDS)
    assert {path.stem for path in RECORDED.glob("*.json")} == {*FIGURES, "checkpoint"}
