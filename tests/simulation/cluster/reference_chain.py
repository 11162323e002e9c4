"""Reference for ``deeppool.simulation.plan.stragglers``: a chain of layers on unlike GPUs, GPU by GPU in plain Python.

No arrays, no fronts: waits are computed separately for each layer and each GPU.
"""


def iteration_time(plan, slowness, bandwidth=1.0):
    """Returns the seconds of one iteration of a chain whose all-reduces do not overlap.

    Args:
        plan: whose layers are a chain.
        slowness: per GPU.
        bandwidth: of every link, as a part of what was planned.
    """
    clock = [0.0] * plan.gpus
    before = None
    for layer in plan.layers:
        _meet(clock, before, layer, layer.reshard > 0)
        for gpu in layer.gpus:
            clock[gpu] += layer.reshard / 2 / bandwidth + layer.forward * slowness[gpu]
        before = layer
    after = before
    for position, layer in enumerate(reversed(plan.layers)):
        _meet(clock, after, layer, position > 0 and after.reshard > 0)
        for gpu in layer.gpus:
            clock[gpu] += layer.backward * slowness[gpu]
        if layer.sync > 0:
            together = max(clock[gpu] for gpu in layer.gpus) + layer.sync / bandwidth
            for gpu in layer.gpus:
                clock[gpu] = together
        for gpu in layer.gpus:
            clock[gpu] += layer.reshard / 2 / bandwidth
        after = layer
    return max(clock)


def _meet(clock, before, layer, moves):
    """The GPUs of a layer wait for those of the layer before, unless they are the same and nothing moves."""
    if before is not None and (moves or before.gpus != layer.gpus):
        latest = max(clock[gpu] for gpu in before.gpus)
        for gpu in layer.gpus:
            clock[gpu] = max(clock[gpu], latest)
