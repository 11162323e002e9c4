"""deeppool: see where GPU time is lost when training is strong-scaled, plan a better use, run it.

    import deeppool as dp

    graph   = dp.capture("vgg16", input_shape=(3, 64, 64))
    profile = dp.profile(graph, device="cpu", batch_sizes=[1, 2, 4, 8])
    plan    = dp.plan(profile, cluster=dp.Cluster(gpus=8), global_batch=32, amplification_limit=2.0)
    print(plan.explain())

From the surfaces down to the vocabulary; imports point down, or left inside a row:

    cli   evaluation                                    surfaces
    widgets                                             views with controls
    coordinator                                         jobs on the GPUs of a Ray cluster
    session   rounds   training_run   attempts          a run beside a background job; a training, its restarts
    live_run   files   catalogue                        a handle; files; what lies in a folder
    figures                                             views
    simulation   execution   collocation                systems; what they measure is a run_record
    planning   scheduling                               decisions, pure
    graph   profiling   collectives   costs             facts
    errors   units   documents   network   cluster   timeline   sharing   job   live_sample   steering   device   env
    margin   run_record   training_record   run_comparison   telemetry   under_way   cancellation   cradle   nursery
    child   pulse   board   vigil   blame   place   rank_group   torchrun
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeppool import figures, widgets
    from deeppool.cluster import Cluster, Link, find_cluster
    from deeppool.collocation.queue import BackgroundJob
    from deeppool.coordinator.client import Coordinator
    from deeppool.env import environment
    from deeppool.execution.checkpoint import load_weights
    from deeppool.execution.training import TrainingJob
    from deeppool.files import load, save
    from deeppool.graph.capture import capture
    from deeppool.live_run import start
    from deeppool.planning.accuracy import StepsTable, find_steps
    from deeppool.planning.diff import diff
    from deeppool.planning.planner import frontier, plan
    from deeppool.planning.replan import replan
    from deeppool.planning.scaling import scaling
    from deeppool.planning.share import share
    from deeppool.profiling.compare import compare_profiles
    from deeppool.profiling.estimate import estimate
    from deeppool.profiling.measure import profile
    from deeppool.profiling.network import measure_network
    from deeppool.profiling.shipped import find_profile
    from deeppool.run_comparison import compare_runs
    from deeppool.session import launch
    from deeppool.sharing import Sharing
    from deeppool.simulation.against import compare_with_run
    from deeppool.simulation.cluster import simulate_cluster
    from deeppool.simulation.comparison import compare_strategies
    from deeppool.simulation.conditions import Conditions, profiled_conditions
    from deeppool.simulation.measured_interference import measure_interference
    from deeppool.simulation.replay import simulate
    from deeppool.simulation.workload import TraceJob, WorkloadTrace
    from deeppool.telemetry.sampler import Sampler
    from deeppool.training_run import train
    from deeppool.under_way import running

__version__ = "0.1.0"

_HOMES = {
    "BackgroundJob": "deeppool.collocation.queue",
    "Cluster": "deeppool.cluster",
    "Conditions": "deeppool.simulation.conditions",
    "Coordinator": "deeppool.coordinator.client",
    "Link": "deeppool.cluster",
    "Sampler": "deeppool.telemetry.sampler",
    "Sharing": "deeppool.sharing",
    "StepsTable": "deeppool.planning.accuracy",
    "TraceJob": "deeppool.simulation.workload",
    "TrainingJob": "deeppool.execution.training",
    "WorkloadTrace": "deeppool.simulation.workload",
    "capture": "deeppool.graph.capture",
    "compare_profiles": "deeppool.profiling.compare",
    "compare_runs": "deeppool.run_comparison",
    "compare_strategies": "deeppool.simulation.comparison",
    "compare_with_run": "deeppool.simulation.against",
    "diff": "deeppool.planning.diff",
    "environment": "deeppool.env",
    "estimate": "deeppool.profiling.estimate",
    "figures": "deeppool",
    "find_cluster": "deeppool.cluster",
    "find_profile": "deeppool.profiling.shipped",
    "find_steps": "deeppool.planning.accuracy",
    "frontier": "deeppool.planning.planner",
    "launch": "deeppool.session",
    "load": "deeppool.files",
    "load_weights": "deeppool.execution.checkpoint",
    "measure_interference": "deeppool.simulation.measured_interference",
    "measure_network": "deeppool.profiling.network",
    "plan": "deeppool.planning.planner",
    "profile": "deeppool.profiling.measure",
    "profiled_conditions": "deeppool.simulation.conditions",
    "replan": "deeppool.planning.replan",
    "running": "deeppool.under_way",
    "save": "deeppool.files",
    "scaling": "deeppool.planning.scaling",
    "share": "deeppool.planning.share",
    "simulate": "deeppool.simulation.replay",
    "simulate_cluster": "deeppool.simulation.cluster",
    "start": "deeppool.live_run",
    "train": "deeppool.training_run",
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
