"""The default figure of any record."""

from collections.abc import Callable
from types import UnionType
from typing import Any

import plotly.graph_objects as go

from deeppool.advice.record import Advice
from deeppool.base.timeline import Timeline
from deeppool.collectives.schedule import Schedule
from deeppool.errors import InvalidValueError
from deeppool.figures.advice import advice
from deeppool.figures.batch_curves import batch_curves
from deeppool.figures.cluster import cluster
from deeppool.figures.collocation import collocation
from deeppool.figures.crossover import crossover
from deeppool.figures.frontier import frontier
from deeppool.figures.interference import interference
from deeppool.figures.scaling import scaling
from deeppool.figures.schedule import schedule
from deeppool.figures.throughput import throughput
from deeppool.figures.timeline import timeline
from deeppool.figures.trade_off import trade_off
from deeppool.figures.training import training
from deeppool.figures.transfers import transfers
from deeppool.figures.ways import ways
from deeppool.interleaving.crossover.comparison_record import CrossoverComparison
from deeppool.interleaving.crossover.record import CrossoverRecord
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.replan import Replan
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.studies.scaling_record import ScalingStudy
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.profiling.table import Profile
from deeppool.records.measured_transfers import MeasuredTransfers
from deeppool.records.measured_ways import MeasuredWays
from deeppool.records.run_record import RunRecord
from deeppool.records.training_record import TrainingRecord
from deeppool.records.transfer_plan import TransferPlan
from deeppool.simulation.cluster.record import ClusterSimulation
from deeppool.simulation.device.collocated import CollocatedSimulation
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.simulate import Simulation
from deeppool.simulation.transfers.comparison import TransferComparison


def of(record: Any, *, dark: bool = False) -> go.Figure:
    """Draws the default figure for the type of a record.

    Args:
        record: a profile, plan, replan, frontier, run, training, simulation of a plan or a cluster, scaling study,
            shared cluster, interference, timeline, schedule, plan or comparison of transfers, training or comparison of
            jobs that cross over, or comparison of ways to train.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: there is no figure for this type.
    """
    for kinds, draw in _FIGURES.items():
        if isinstance(record, kinds):
            return draw(record, dark=dark)
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
}
