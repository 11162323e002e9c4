"""Saving and loading records whose kind is told by the file."""

import importlib
import itertools
import os
import re
from pathlib import Path
from typing import Any

from deeppool import documents
from deeppool.errors import DocumentError
from deeppool.run_record import RunRecord

KINDS = {
    "cluster": ("deeppool.cluster", "Cluster"),
    "cluster-comparison": ("deeppool.simulation.comparison", "ClusterComparison"),
    "cluster-job": ("deeppool.coordinator.history", "JobRecord"),
    "cluster-simulation": ("deeppool.simulation.cluster_record", "ClusterSimulation"),
    "cluster-status": ("deeppool.coordinator.history", "ClusterStatus"),
    "diff": ("deeppool.planning.diff", "PlanDiff"),
    "collocated-plan": ("deeppool.simulation.collocated_plan", "CollocatedPlan"),
    "collocated-simulation": ("deeppool.simulation.collocated", "CollocatedSimulation"),
    "critical-batch": ("deeppool.planning.accuracy", "CriticalBatch"),
    "evaluation": ("deeppool.evaluation.record", "Evaluation"),
    "fidelity": ("deeppool.simulation.fidelity", "Fidelity"),
    "fixed-samples": ("deeppool.planning.accuracy", "FixedSamples"),
    "frontier": ("deeppool.planning.frontier", "Frontier"),
    "interference": ("deeppool.simulation.interference", "Interference"),
    "night": ("deeppool.evaluation.night", "Night"),
    "plan": ("deeppool.planning.plan", "Plan"),
    "price-list": ("deeppool.planning.price_list", "PriceList"),
    "profile": ("deeppool.profiling.table", "Profile"),
    "profile-comparison": ("deeppool.profiling.compare", "ProfileComparison"),
    "replan": ("deeppool.planning.replan", "Replan"),
    "run": ("deeppool.run_record", "RunRecord"),
    "run-comparison": ("deeppool.run_comparison", "RunComparison"),
    "scaling": ("deeppool.planning.study", "ScalingStudy"),
    "shared-cluster": ("deeppool.planning.shared_cluster", "SharedCluster"),
    "simulation": ("deeppool.simulation.replay", "Simulation"),
    "steps-table": ("deeppool.planning.accuracy", "StepsTable"),
    "telemetry": ("deeppool.telemetry.record", "Telemetry"),
    "training": ("deeppool.training_record", "TrainingRecord"),
    "verdict": ("deeppool.evaluation.verdict", "Verdict"),
    "workload-trace": ("deeppool.simulation.workload", "WorkloadTrace"),
}


def save(record: documents.Record, path: str | os.PathLike[str]) -> Path:
    """Writes a profile, plan, cluster, simulation or run as JSON, whole or not at all."""
    return documents.write(record, path)


def save_run(run: RunRecord, folder: str | os.PathLike[str]) -> Path:
    """Writes a run's record into a folder, which is made if it is not there, under a name that no file has yet.

    The name says what ran and when: ``run-2026-11-21T05-00-00-vgg16-resnet18.json``.

    Raises:
        DocumentError: it cannot be written.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot make the folder {target}: {error.strerror} (choose another folder)") from error
    background = "" if run.background is None else f"-{run.background.model}"
    name = re.sub(r"[^\w.-]+", "-", f"run-{run.date}-{run.model}{background}")
    path = target / f"{name}.json"
    for number in itertools.count(2):
        if not path.exists():
            return save(run, path)
        path = target / f"{name}-{number}.json"
    raise AssertionError("there is always a next number")


def load(path: str | os.PathLike[str]) -> Any:
    """Reads a record of any kind.

    Raises:
        DocumentError: the file is not one of ours, or a field of it is wrong.
    """
    document = documents.read_object(path)
    kind = str(document.get("format", "")).removeprefix("deeppool/")
    if kind not in KINDS:
        raise DocumentError(
            f"{path}: field 'format' is {document.get('format')!r}, expected deeppool/ and one of {', '.join(KINDS)} "
            "(is it a file of deeppool?)"
        )
    module, name = KINDS[kind]
    record: Any = documents.from_json(document, getattr(importlib.import_module(module), name), path)
    return record
