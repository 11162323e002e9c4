"""Cuts a model into stages so short that a background made of them can be stopped soon.

Each layer is measured by itself first; neighbours are then put together until a piece would take longer than asked, as
each costs some Python of its own. Only the optimizer's update stays whole.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from deeppool.base.sharing import Sharing
from deeppool.collectives.layout import Layout
from deeppool.collocation.foreground_phases import ForegroundPhases
from deeppool.device.common import Device
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import example_inputs, extract
from deeppool.scheduling.background_limits import Operator

PIECE_SECONDS = 0.002
"""Of a piece on a CPU. The kernel stops a piece of low priority at once, whatever its length; what is bounded here is
how late the background sees an order. Shorter ones see it sooner, and cost more Python for the same work."""
LONGER = 0.008
"""The same where orders change no more often than iterations do: a step of ResNet-18 becomes 3 % longer, not 8 %."""
MEASURED = 3
"""Times that each layer is measured; the least counts."""


def longest_piece(sharing: Sharing) -> float:
    """Seconds of a piece at most, for a background in a process of its own on a CPU.

    At the lowest priority a bound needs no more than to be seen within an iteration. Any other mechanism looks at what
    the foreground does within it, and at any other priority the foreground waits for the piece that runs.
    """
    bare = Sharing(max_slowdown=sharing.max_slowdown, home=sharing.home)
    return LONGER if sharing == bare else PIECE_SECONDS


def in_pieces(
    captured: CapturedModel,
    batch: int,
    trainer_of: Callable[[Sequence[Stage]], Trainer],
    device: Device,
    limit: float,
) -> tuple[Stage, ...]:
    """The model as stages of at most ``limit`` seconds, or of one layer, by its own layers' times.

    The state of the model is as before when it is done.

    Args:
        captured: the model.
        batch: samples of a step.
        trainer_of: makes a trainer of some stages.
        device: that runs them.
        limit: seconds of a piece, forward or backward.
    """
    layers = captured.graph.layers
    single = [_stage(captured, range(index, index + 1), batch) for index in range(len(layers))]
    times = _measure(captured, batch, trainer_of(single), ForegroundPhases(device))
    return tuple(_stage(captured, piece, batch) for piece in cut(times, limit))


def cut(times: Sequence[tuple[float, float]], limit: float) -> list[range]:
    """The fewest runs of layers, in order, whose forwards and whose backwards take at most ``limit`` seconds together.

    A layer that takes longer stands alone. Filling each run as far as it goes is optimal. O(layers).

    Args:
        times: forward and backward of each layer, in seconds.
        limit: in seconds.
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


def _measure(
    captured: CapturedModel, batch: int, trainer: Trainer, phases: ForegroundPhases
) -> list[tuple[float, float]]:
    """Forward and backward seconds of each layer, each a stage of the trainer."""
    program = captured.program
    buffers = {buffer: buffer.clone() for buffer in program.buffers()}
    runs: list[Mapping[Operator, float]] = []
    trainer.watcher = phases
    with torch.random.fork_rng(devices=[]):
        samples = _samples(captured, batch)
        for _ in range(MEASURED):
            trainer.gradients([lambda _: samples])
            runs.append(phases.times())
    # BatchNorm remembers what it has seen, and gradients would add up.
    for buffer, before in buffers.items():
        buffer.copy_(before)
    for parameter in program.parameters():
        parameter.grad = None
    return [
        (min(run["forward", layer] for run in runs), min(run["backward", layer] for run in runs))
        for layer in range(len(trainer.stages))
    ]


def _samples(captured: CapturedModel, batch: int) -> tuple[torch.Tensor, ...]:
    """Random ones, in the order of the program's inputs: the job's own come one after another, and none may be lost."""
    place = next(captured.program.parameters()).device
    whole = extract(captured, range(len(captured.graph.layers)))
    found = dict(zip(whole.inputs, example_inputs(whole, batch, place), strict=True))
    placeholders = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
    return tuple(found.get(node, torch.empty(0, device=place)) for node in placeholders)


def _stage(captured: CapturedModel, layers: range, batch: int) -> Stage:
    first, last = captured.graph.layers[layers.start].name, captured.graph.layers[layers.stop - 1].name
    return Stage(first if first == last else f"{first} … {last}", tuple(layers), Layout((0,), batch))
