"""Renumbers the GPUs of a plan so that unused ones drop out."""

from dataclasses import replace

from deeppool.planning.plan import Plan


def renumber_gpus(plan: Plan) -> Plan:
    """Returns the same plan with its used GPUs numbered from 0 on and without those that no layer uses.

    It trains the same and takes the same time, and needs only ``gpus`` ranks to run.
    """
    used = sorted({gpu for layer in plan.layers for gpu in layer.gpus})
    number = {gpu: index for index, gpu in enumerate(used)}

    def renumbered(gpus: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[gpu] for gpu in gpus if gpu in number)

    return replace(
        plan,
        gpus=len(used),
        layers=tuple(layer.on(renumbered(layer.gpus)) for layer in plan.layers),
        memory=tuple(replace(use, gpus=renumbered(use.gpus)) for use in plan.memory if renumbered(use.gpus)),
    )
