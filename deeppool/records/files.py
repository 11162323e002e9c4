"""Saves records as files, and loads them by the kind that the file names."""

import importlib
import itertools
import os
import re
from os.path import exists
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.errors import DocumentError
from deeppool.records.run_record import RunRecord

LONGEST = 200
"""Bytes of the name of a record's file, without number and ``.json``; file systems take 255, with a temporary one's."""

KINDS = {
    "advice": ("deeppool.advice.record", "Advice"),
    "calibration": ("deeppool.device.calibration", "Calibration"),
    "cluster": ("deeppool.cluster.cluster", "Cluster"),
    "cluster-comparison": ("deeppool.simulation.cluster.comparison", "ClusterComparison"),
    "cluster-job": ("deeppool.coordinator.history", "JobRecord"),
    "cluster-simulation": ("deeppool.simulation.cluster.record", "ClusterSimulation"),
    "cluster-status": ("deeppool.coordinator.history", "ClusterStatus"),
    "diff": ("deeppool.planning.report.diff", "PlanDiff"),
    "collocated-plan": ("deeppool.simulation.plan.collocated_plan", "CollocatedPlan"),
    "collocated-simulation": ("deeppool.simulation.device.collocated", "CollocatedSimulation"),
    "crossover": ("deeppool.interleaving.crossover.record", "CrossoverRecord"),
    "crossover-comparison": ("deeppool.interleaving.crossover.comparison_record", "CrossoverComparison"),
    "critical-batch": ("deeppool.planning.studies.steps_to_accuracy", "CriticalBatch"),
    "environment": ("deeppool.device.environment", "Environment"),
    "evaluation": ("deeppool.evaluation.record", "Evaluation"),
    "field-changes": ("deeppool.records.field_changes", "FieldChanges"),
    "fidelity": ("deeppool.simulation.plan.fidelity", "Fidelity"),
    "fixed-samples": ("deeppool.planning.studies.steps_to_accuracy", "FixedSamples"),
    "frontier": ("deeppool.planning.search.frontier", "Frontier"),
    "gpu": ("deeppool.device.datasheet", "GpuSheet"),
    "interference": ("deeppool.simulation.device.interference", "Interference"),
    "measured-ways": ("deeppool.records.measured_ways", "MeasuredWays"),
    "measured-transfers": ("deeppool.records.measured_transfers", "MeasuredTransfers"),
    "night": ("deeppool.evaluation.nightly_record", "NightlyRun"),
    "pairing": ("deeppool.interleaving.crossover.pairing", "Pairing"),
    "plan": ("deeppool.planning.plan", "Plan"),
    "plan-check": ("deeppool.planning.check", "PlanCheck"),
    "price-list": ("deeppool.planning.report.alternatives", "PlanAlternatives"),
    "profile": ("deeppool.profiling.table", "Profile"),
    "profile-comparison": ("deeppool.profiling.comparison", "ProfileComparison"),
    "profile-list": ("deeppool.profiling.shipped", "ShippedProfiles"),
    "replan": ("deeppool.planning.replanning.replan", "Replan"),
    "run": ("deeppool.records.run_record", "RunRecord"),
    "run-comparison": ("deeppool.records.run_comparison", "RunComparison"),
    "scaling": ("deeppool.planning.studies.scaling_record", "ScalingStudy"),
    "shared-cluster": ("deeppool.planning.studies.tradeoff_record", "SharedCluster"),
    "sharing-answer": ("deeppool.planning.studies.tradeoff_record", "SharingAnswer"),
    "simulation": ("deeppool.simulation.plan.simulate", "Simulation"),
    "steps-table": ("deeppool.planning.studies.steps_to_accuracy", "StepsTable"),
    "telemetry": ("deeppool.telemetry.record", "Telemetry"),
    "training": ("deeppool.records.training_record", "TrainingRecord"),
    "transfer-comparison": ("deeppool.simulation.transfers.comparison", "TransferComparison"),
    "transfer-plan": ("deeppool.records.transfer_plan", "TransferPlan"),
    "timeline": ("deeppool.base.timeline", "Timeline"),
    "trials": ("deeppool.records.trials_record", "TrialsRecord"),
    "verdict": ("deeppool.evaluation.regression_report", "RegressionReport"),
    "workload-trace": ("deeppool.simulation.cluster.workload", "WorkloadTrace"),
}


@typed
def save(record: serialization.Record, path: str | os.PathLike[str]) -> Path:
    """Writes a record as JSON, whole or not at all: a profile, plan, cluster, simulation, run or any other."""
    return serialization.write(record, path)


def file_name(title: str) -> str:
    """Returns the name of a record's file: ``jobs-net.json`` for ``jobs:net``, whose colon some systems do not take."""
    return re.sub(r"[^\w.-]+", "-", title).encode()[:LONGEST].decode(errors="ignore") + ".json"


def save_run(run: RunRecord, folder: str | os.PathLike[str]) -> Path:
    """Writes a run's record into a folder, which is created if missing, under a name that no file has yet.

    The name has the models and the time: ``run-2026-11-21T05-00-00-vgg16-resnet18.json``; long ones are cut off.

    Raises:
        DocumentError: it cannot be written.
    """
    target = Path(folder)
    try:
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DocumentError(f"cannot make the folder {target}: {error.strerror} (choose another folder)") from error
    background = "" if run.background is None else f"-{run.background.model}"
    path = target / file_name(f"run-{run.date}-{run.model}{background}")
    stem = path.stem
    for number in itertools.count(2):
        if not exists(path):
            return save(run, path)
        path = path.with_stem(f"{stem}-{number}")
    raise AssertionError("there is always a next number")


@typed
def load(path: str | os.PathLike[str]) -> Any:
    """Reads a record of any kind.

    Raises:
        DocumentError: the file is no record of deeppool, or a field of it is wrong.
    """
    document = serialization.read_object(path)
    kind = str(document.get("format", "")).removeprefix("deeppool/")
    if kind not in KINDS:
        raise DocumentError(
            f"{path}: field 'format' is {document.get('format')!r}, expected deeppool/ and one of {', '.join(KINDS)} "
            "(is it a file of deeppool?)"
        )
    module, name = KINDS[kind]
    record: Any = serialization.from_json(document, getattr(importlib.import_module(module), name), path)
    return record


def text_of(record: Any) -> str:
    """Returns a record as text: its explanation where it has one, else its line."""
    explain = getattr(record, "explain", None)
    return str(record) if explain is None else str(explain())
