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
    runs         adapters | advice | runs < coordinator
    systems      simulation | execution < collocation < interleaving
    decisions    planning < scheduling
    facts        graph < training < collectives < profiling < costs
    records      records
    platform     cluster | device < telemetry | processes
    base         base
    vocabulary   errors < units < job
"""

import lazy_loader

__version__ = "0.1.0"

# The public names stand in __init__.pyi, for people, type checkers and this: each is loaded when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
