"""deeppool: see where GPU time is lost when training is strong-scaled, plan a better use, run it.

    import deeppool as dp

    graph   = dp.capture("vgg16", input_shape=(3, 64, 64))
    profile = dp.profile(graph, device="cpu", batch_sizes=[1, 2, 4, 8])
    plan    = dp.plan(profile, cluster=dp.Cluster(gpus=8), global_batch=32, amplification_limit=2.0)
    print(plan.explain())

From the surfaces down to the vocabulary; imports point down, or left inside a row:

    cli   evaluation                                    surfaces
    session   files                                     a live run, execution and collocation together; saving, loading
    figures                                             views
    simulation   collocation   execution                systems, which meet in job
    planning                                            decisions, pure
    graph   profiling   collectives   costs             facts
    errors   units   documents   cluster   timeline   job   device   env   child
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeppool import figures
    from deeppool.cluster import Cluster, Link, find_cluster
    from deeppool.env import environment
    from deeppool.files import load, save
    from deeppool.graph.capture import capture
    from deeppool.planning.accuracy import StepsTable, find_steps
    from deeppool.planning.diff import diff
    from deeppool.planning.planner import frontier, plan
    from deeppool.planning.replan import replan
    from deeppool.planning.scaling import scaling
    from deeppool.planning.share import share
    from deeppool.profiling.estimate import estimate
    from deeppool.profiling.measure import profile
    from deeppool.session import launch
    from deeppool.simulation.replay import simulate

__version__ = "0.1.0"

_HOMES = {
    "Cluster": "deeppool.cluster",
    "Link": "deeppool.cluster",
    "StepsTable": "deeppool.planning.accuracy",
    "capture": "deeppool.graph.capture",
    "diff": "deeppool.planning.diff",
    "environment": "deeppool.env",
    "estimate": "deeppool.profiling.estimate",
    "figures": "deeppool",
    "find_cluster": "deeppool.cluster",
    "find_steps": "deeppool.planning.accuracy",
    "frontier": "deeppool.planning.planner",
    "launch": "deeppool.session",
    "load": "deeppool.files",
    "plan": "deeppool.planning.planner",
    "profile": "deeppool.profiling.measure",
    "replan": "deeppool.planning.replan",
    "save": "deeppool.files",
    "scaling": "deeppool.planning.scaling",
    "share": "deeppool.planning.share",
    "simulate": "deeppool.simulation.replay",
}

__all__ = [
    "Cluster",
    "Link",
    "StepsTable",
    "capture",
    "diff",
    "environment",
    "estimate",
    "figures",
    "find_cluster",
    "find_steps",
    "frontier",
    "launch",
    "load",
    "plan",
    "profile",
    "replan",
    "save",
    "scaling",
    "share",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used, so that importing deeppool stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"deeppool has no '{name}'; it has {', '.join(__all__)}")
    if name == "figures":
        return importlib.import_module("deeppool.figures")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
