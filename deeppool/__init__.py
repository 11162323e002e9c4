"""deeppool: see where GPU time is lost when training is strong-scaled, plan a better use, run it.

    import deeppool as dp

    graph   = dp.capture("vgg16", input_shape=(3, 64, 64))
    profile = dp.profile(graph, device="cpu", batch_sizes=[1, 2, 4, 8])
    plan    = dp.plan(profile, cluster=dp.Cluster(gpus=8), global_batch=32, amplification_limit=2.0)
    print(plan.explain())

The packages, from the surfaces down. A package imports from the rows below it, and from what stands left of a ``<`` in
its own row; ``|`` separates packages that do not import each other (tests/test_architecture.py reads this map):

    surfaces     widgets < evaluation < cli
    views        figures
    runs         runs < coordinator
    systems      simulation | execution < collocation
    decisions    planning < scheduling
    facts        graph < training < collectives < profiling < costs
    records      records
    platform     cluster | device < telemetry | processes
    base         base
    vocabulary   errors < units < job
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeppool import figures, widgets
    from deeppool.base.run_registry import running
    from deeppool.base.sharing import Sharing
    from deeppool.cluster.cluster import Cluster, Link, find_cluster
    from deeppool.collocation.interference.measure import measure_interference
    from deeppool.collocation.job_queue import BackgroundJob
    from deeppool.coordinator.client import Coordinator
    from deeppool.device.environment import environment
    from deeppool.execution.checkpoint import load_weights
    from deeppool.graph.capture.capture import capture
    from deeppool.planning.planner import frontier, plan
    from deeppool.planning.replanning.replan import replan
    from deeppool.planning.report.diff import diff
    from deeppool.planning.studies.collocation_tradeoff import share
    from deeppool.planning.studies.scaling import scaling
    from deeppool.planning.studies.steps_to_accuracy import StepsTable, find_steps
    from deeppool.profiling.comparison import compare_profiles
    from deeppool.profiling.estimate.estimate import estimate
    from deeppool.profiling.measure.profile import profile
    from deeppool.profiling.network.measure import measure_network
    from deeppool.profiling.shipped import find_profile
    from deeppool.records.files import load, save
    from deeppool.records.run_comparison import compare_runs
    from deeppool.runs.handle import start
    from deeppool.runs.launch import launch
    from deeppool.runs.train import train
    from deeppool.simulation.cluster.comparison import compare_strategies
    from deeppool.simulation.cluster.simulate import simulate_cluster
    from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace
    from deeppool.simulation.plan.conditions import Conditions, profiled_conditions
    from deeppool.simulation.plan.simulate import simulate
    from deeppool.simulation.validation.compare_with_run import compare_with_run
    from deeppool.telemetry.sampler import Sampler
    from deeppool.training.training_job import TrainingJob

__version__ = "0.1.0"

_HOMES = {
    "BackgroundJob": "deeppool.collocation.job_queue",
    "Cluster": "deeppool.cluster.cluster",
    "Conditions": "deeppool.simulation.plan.conditions",
    "Coordinator": "deeppool.coordinator.client",
    "Link": "deeppool.cluster.cluster",
    "Sampler": "deeppool.telemetry.sampler",
    "Sharing": "deeppool.base.sharing",
    "StepsTable": "deeppool.planning.studies.steps_to_accuracy",
    "TraceJob": "deeppool.simulation.cluster.workload",
    "TrainingJob": "deeppool.training.training_job",
    "WorkloadTrace": "deeppool.simulation.cluster.workload",
    "capture": "deeppool.graph.capture.capture",
    "compare_profiles": "deeppool.profiling.comparison",
    "compare_runs": "deeppool.records.run_comparison",
    "compare_strategies": "deeppool.simulation.cluster.comparison",
    "compare_with_run": "deeppool.simulation.validation.compare_with_run",
    "diff": "deeppool.planning.report.diff",
    "environment": "deeppool.device.environment",
    "estimate": "deeppool.profiling.estimate.estimate",
    "figures": "deeppool",
    "find_cluster": "deeppool.cluster.cluster",
    "find_profile": "deeppool.profiling.shipped",
    "find_steps": "deeppool.planning.studies.steps_to_accuracy",
    "frontier": "deeppool.planning.planner",
    "launch": "deeppool.runs.launch",
    "load": "deeppool.records.files",
    "load_weights": "deeppool.execution.checkpoint",
    "measure_interference": "deeppool.collocation.interference.measure",
    "measure_network": "deeppool.profiling.network.measure",
    "plan": "deeppool.planning.planner",
    "profile": "deeppool.profiling.measure.profile",
    "profiled_conditions": "deeppool.simulation.plan.conditions",
    "replan": "deeppool.planning.replanning.replan",
    "running": "deeppool.base.run_registry",
    "save": "deeppool.records.files",
    "scaling": "deeppool.planning.studies.scaling",
    "share": "deeppool.planning.studies.collocation_tradeoff",
    "simulate": "deeppool.simulation.plan.simulate",
    "simulate_cluster": "deeppool.simulation.cluster.simulate",
    "start": "deeppool.runs.handle",
    "train": "deeppool.runs.train",
    "widgets": "deeppool",
}

__all__ = [
    "BackgroundJob",
    "Cluster",
    "Conditions",
    "Coordinator",
    "Link",
    "Sampler",
    "Sharing",
    "StepsTable",
    "TraceJob",
    "TrainingJob",
    "WorkloadTrace",
    "capture",
    "compare_profiles",
    "compare_runs",
    "compare_strategies",
    "compare_with_run",
    "diff",
    "environment",
    "estimate",
    "figures",
    "find_cluster",
    "find_profile",
    "find_steps",
    "frontier",
    "launch",
    "load",
    "load_weights",
    "measure_interference",
    "measure_network",
    "plan",
    "profile",
    "profiled_conditions",
    "replan",
    "running",
    "save",
    "scaling",
    "share",
    "simulate",
    "simulate_cluster",
    "start",
    "train",
    "widgets",
]


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used, so that importing deeppool stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"deeppool has no '{name}'; it has {', '.join(__all__)}")
    if _HOMES[name] == "deeppool":
        return importlib.import_module(f"deeppool.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
