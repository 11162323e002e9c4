"""Splits a model into stages so short that a background made of them can be stopped soon.

Each layer is measured by itself first; consecutive layers are then grouped up to the longest piece allowed, as every
piece costs some Python. Only the optimizer's update stays whole.
"""

from collections.abc import Callable, Sequence

import torch

from deeppool.base.sharing import Sharing
from deeppool.collectives.layout import Layout
from deeppool.device.protocol import Device
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import example_inputs, extract

PIECE_SECONDS = 0.002
"""Longest piece on a CPU. The kernel preempts low priority at once, whatever its length; this bounds how late the
background sees a new limit. Shorter pieces see it sooner and cost more Python for the same work."""
LONG_PIECE_SECONDS = 0.008
"""Longest piece where limits change at most once per iteration: a step of ResNet-18 becomes 3 % longer, not 8 %."""
GPU_PIECE_SECONDS = 0.0005
"""Longest piece on a GPU, which does not preempt: half of what policy ``paced`` allows in flight."""
REPETITIONS = 3
"""Times that each layer is measured; the minimum counts."""


def longest_piece(sharing: Sharing, device: Device) -> float:
    """Returns the maximum seconds of a piece.

    At the lowest priority a bound only has to be seen within an iteration. Any other mechanism reacts to the phases of
    an iteration, and at any other priority the foreground waits for the running piece.
    """
    if device.asynchronous:
        return GPU_PIECE_SECONDS
    bound_only = Sharing(max_slowdown=sharing.max_slowdown, home=sharing.home)
    return LONG_PIECE_SECONDS if sharing == bound_only else PIECE_SECONDS


def split_model(
    captured: CapturedModel,
    batch: int,
    trainer_of: Callable[[Sequence[Stage]], Trainer],
    limit: float,
) -> tuple[Stage, ...]:
    """Splits a model into stages of at most ``limit`` seconds, or of one layer, by its measured layer times.

    Leaves the state of the model unchanged.

    Args:
        captured: the model.
        batch: samples per step.
        trainer_of: makes a trainer of some stages.
        limit: maximum seconds of a piece, forward or backward.
    """
    layers = captured.graph.layers
    single = [stage_of(captured, range(index, index + 1), batch) for index in range(len(layers))]
    times = _measure(captured, batch, trainer_of(single))
    return tuple(stage_of(captured, piece, batch) for piece in group_layers(times, limit))


def group_layers(times: Sequence[tuple[float, float]], limit: float) -> list[range]:
    """Groups consecutive layers into the fewest runs whose forwards and whose backwards take at most ``limit`` seconds.

    A layer that takes longer is a run of its own. Filling each run greedily is optimal. O(layers).

    Args:
        times: forward and backward seconds of each layer.
        limit: maximum seconds of a run, forward or backward.
    """
    runs: list[range] = []
    forward = backward = 0.0
    for index, (ahead, back) in enumerate(times):
        if runs and forward + ahead <= limit and backward + back <= limit:
            runs[-1] = range(runs[-1].start, index + 1)
            forward, backward = forward + ahead, backward + back
        else:
            runs.append(range(index, index + 1))
            forward, backward = ahead, back
    return runs


def _measure(captured: CapturedModel, batch: int, trainer: Trainer) -> list[tuple[float, float]]:
    """Measures forward and backward seconds of each layer; each is a stage of the trainer."""
    program = captured.program
    buffers = {buffer: buffer.clone() for buffer in program.buffers()}
    runs = []
    with torch.random.fork_rng(devices=[]):
        samples = _samples(captured, batch)
        for _ in range(REPETITIONS):
            trainer.recorded = []
            trainer.gradients([lambda _: samples])
            runs.append(trainer.operator_seconds(trainer.recorded))
    # BatchNorm has updated its statistics, and gradients would accumulate.
    for buffer, before in buffers.items():
        buffer.copy_(before)
    for parameter in program.parameters():
        parameter.grad = None
    return [
        (min(run["forward", layer] for run in runs), min(run["backward", layer] for run in runs))
        for layer in range(len(trainer.stages))
    ]


def _samples(captured: CapturedModel, batch: int) -> tuple[torch.Tensor, ...]:
    """Returns random samples in the order of the program's inputs: reading the job's own would skip some of them."""
    place = next(captured.program.parameters()).device
    whole = extract(captured, range(len(captured.graph.layers)))
    found = dict(zip(whole.inputs, example_inputs(whole, batch, place), strict=True))
    placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
    return tuple(found.get(node, torch.empty(0, device=place)) for node in placeholders)


def single_stage(captured: CapturedModel, batch: int) -> tuple[Stage, ...]:
    """Returns the whole model as one stage."""
    return (stage_of(captured, range(len(captured.graph.layers)), batch),)


def stage_of(captured: CapturedModel, layers: range, batch: int) -> Stage:
    """Returns some consecutive layers as one stage on one rank."""
    first, last = captured.graph.layers[layers.start].name, captured.graph.layers[layers.stop - 1].name
    return Stage(first if first == last else f"{first} … {last}", tuple(layers), Layout((0,), batch))
