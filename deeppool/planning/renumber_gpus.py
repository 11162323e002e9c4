"""The GPUs that a plan really uses."""

from dataclasses import replace

from deeppool.planning.plan import Plan


def renumber_gpus(plan: Plan) -> Plan:
    """The same plan with the GPUs that it uses numbered from 0 on, and without those that no layer uses.

    It trains the same and takes the same time; whoever runs it has to find room for ``gpus`` ranks only.
    """
    used = sorted({gpu for layer in plan.layers for gpu in layer.gpus})
    number = {gpu: index for index, gpu in enumerate(used)}

    def renumbered(gpus: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[gpu] for gpu in gpus if gpu in number)

    return replace(
        plan,
        gpus=len(used),
        layers=tuple(replace(layer, gpus=renumbered(layer.gpus)) for layer in plan.layers),
        memory=tuple(replace(use, gpus=renumbered(use.gpus)) for use in plan.memory if renumbered(use.gpus)),
    )
