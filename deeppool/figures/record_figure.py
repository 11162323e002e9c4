"""The default figure of any record, and the kinds that have none."""

import importlib
from collections.abc import Callable
from types import UnionType
from typing import Any

import plotly.graph_objects as go

from deeppool.advice.record import Advice
from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.schedule import Schedule
from deeppool.coordinator.history import ClusterStatus
from deeppool.device.calibration import Calibration
from deeppool.device.datasheet import GpuSheet
from deeppool.errors import InvalidValueError
from deeppool.figures.advice import advice
from deeppool.figures.alternatives import alternatives
from deeppool.figures.batch_curves import batch_curves
from deeppool.figures.changes import changes
from deeppool.figures.cluster import cluster
from deeppool.figures.collocated_gpus import collocated_gpus
from deeppool.figures.collocation import collocation
from deeppool.figures.crossover import crossover
from deeppool.figures.frontier import frontier
from deeppool.figures.interference import interference
from deeppool.figures.job_progress import job_progress
from deeppool.figures.kernel_costs import kernel_costs
from deeppool.figures.network import network
from deeppool.figures.pairing import pairing
from deeppool.figures.roofline import roofline
from deeppool.figures.scaling import scaling
from deeppool.figures.schedule import schedule
from deeppool.figures.steps import steps
from deeppool.figures.strategies import strategies
from deeppool.figures.telemetry import telemetry
from deeppool.figures.throughput import throughput
from deeppool.figures.timeline import timeline
from deeppool.figures.trade_off import trade_off
from deeppool.figures.training import training
from deeppool.figures.transfers import transfers
from deeppool.figures.trials import trials
from deeppool.figures.ways import ways
from deeppool.figures.workload import workload
from deeppool.interleaving.crossover.comparison_record import CrossoverComparison
from deeppool.interleaving.crossover.pairing import Pairing
from deeppool.interleaving.crossover.record import CrossoverRecord
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.replan import Replan
from deeppool.planning.report.alternatives import PlanAlternatives
from deeppool.planning.report.diff import PlanDiff
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.studies.scaling_record import ScalingStudy
from deeppool.planning.studies.steps_to_accuracy import CriticalBatch, FixedSamples, StepsTable
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.profiling.comparison import ProfileComparison
from deeppool.profiling.table import Profile
from deeppool.records.measured_transfers import MeasuredTransfers
from deeppool.records.measured_ways import MeasuredWays
from deeppool.records.run_comparison import RunComparison
from deeppool.records.run_record import RunRecord
from deeppool.records.training_record import TrainingRecord
from deeppool.records.transfer_plan import TransferPlan
from deeppool.records.trials_record import TrialsRecord
from deeppool.simulation.cluster.comparison import ClusterComparison
from deeppool.simulation.cluster.record import ClusterSimulation
from deeppool.simulation.cluster.workload import WorkloadTrace
from deeppool.simulation.device.collocated import CollocatedSimulation
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.collocated_plan import CollocatedPlan
from deeppool.simulation.plan.fidelity import Fidelity
from deeppool.simulation.plan.simulate import Simulation
from deeppool.simulation.transfers.comparison import TransferComparison
from deeppool.telemetry.record import Telemetry


def of(record: Any, *, dark: bool = False) -> go.Figure:
    """Draws the default figure for the type of a record.

    Args:
        record: a record of any kind but those of :data:`WITHOUT_FIGURE`, a timeline or a schedule.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: there is no figure for this type.
    """
    kind = getattr(record, "KIND", "")
    if kind in WITHOUT_FIGURE:
        raise InvalidValueError(f"there is no figure of kind '{kind}': {WITHOUT_FIGURE[kind]} (print the record)")
    for kinds, draw in _FIGURES.items():
        if isinstance(record, kinds):
            return draw(record, dark=dark)
    if kind in _OF_EVALUATION:
        module, name = _OF_EVALUATION[kind]
        drawn: go.Figure = getattr(importlib.import_module(module), name)(record, dark=dark)
        return drawn
    raise InvalidValueError(f"there is no figure of a {type(record).__name__} (print the record, or read its fields)")


_FIGURES: dict[type | UnionType, Callable[..., go.Figure]] = {
    Advice: advice,
    RunRecord: collocation,
    Plan | Simulation | Timeline: timeline,
    TrainingRecord: training,
    Frontier: frontier,
    Profile: batch_curves,
    ScalingStudy: scaling,
    Schedule: schedule,
    TransferPlan: lambda found, *, dark: timeline(found.timeline(), dark=dark),
    TransferComparison | MeasuredTransfers: transfers,
    CrossoverRecord | CrossoverComparison: crossover,
    MeasuredWays: ways,
    SharedCluster: throughput,
    ClusterSimulation: cluster,
    Replan: lambda found, *, dark: timeline(found.before, found.after, title="Before, and below it after", dark=dark),
    Interference: interference,
    CollocatedSimulation: lambda found, *, dark: trade_off([found], dark=dark),
    CollocatedPlan: collocated_gpus,
    PlanAlternatives: alternatives,
    PlanDiff | RunComparison | ProfileComparison | Fidelity: changes,
    CriticalBatch | FixedSamples | StepsTable: steps,
    Cluster: network,
    GpuSheet: roofline,
    Calibration: kernel_costs,
    ClusterComparison: strategies,
    WorkloadTrace: workload,
    ClusterStatus: job_progress,
    Pairing: pairing,
    Telemetry: telemetry,
    TrialsRecord: trials,
}

_OF_EVALUATION = {
    "evaluation": ("deeppool.evaluation.figures.nights", "against_paper"),
    "night": ("deeppool.evaluation.figures.nights", "night"),
    "verdict": ("deeppool.evaluation.figures.nights", "moved"),
}
"""Module and function by kind: evaluation is built on this package, and is loaded for its own records only."""
WITHOUT_FIGURE = {
    "environment": "it names a machine's parts and versions, which its text has",
    "plan-check": "it says what holds of a plan, which has a figure itself",
    "cluster-job": "it is one state and one number of updates, which its text has (the cluster's status has a figure)",
    "sharing-answer": "it is one point of a trade-off, which has a figure itself",
    "profile-list": "it names profiles, each of which has a figure itself",
    "field-changes": "it lists fields of any type, which have no common axis; its text is the table of them",
}
"""Kinds without a figure, and the reason."""
