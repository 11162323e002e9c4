"""Partitions of a model that rotate over the ranks, and which rank computes what in which phase.

Batch b is computed with partition k on rank (b + k) mod P. With P batches all ranks compute in every phase, each with
the same partition on another batch; with one batch the order is that of plain model parallelism, and each rank needs
its own partition alone. Partition k is kept by rank k.
"""

from collections.abc import Sequence

from deeppool.base.number_checks import whole_number
from deeppool.collectives.layout import Layout
from deeppool.errors import InvalidValueError
from deeppool.execution.stages import Stage
from deeppool.graph.layer import LayerGraph


def rotated_stages(parts: Sequence[Sequence[int]], waves: int, global_batch: int) -> tuple[Stage, ...]:
    """Returns a stage for each partition, on as many ranks as there are waves.

    Args:
        parts: layers of each partition; there are as many ranks.
        waves: batches that are in progress at the same time, each a shard of the global batch.
        global_batch: samples of all of them.

    Raises:
        InvalidValueError: there are more waves than ranks, or fewer than one.
    """
    ranks = len(parts)
    whole_number("waves", waves, 1, ranks, f"there are {ranks} ranks")
    return tuple(
        Stage(
            f"partition {number}",
            tuple(layers),
            Layout(tuple((batch + number) % ranks for batch in range(waves)), global_batch),
        )
        for number, layers in enumerate(parts)
    )


def partitions(graph: LayerGraph, count: int, seconds: Sequence[float] | None = None) -> tuple[tuple[int, ...], ...]:
    """Divides layers into runs whose largest sum of times is the least; each run has parameters.

    Args:
        graph: the model.
        count: number of runs.
        seconds: time of each layer. Default: the bytes that it saves for its backward stand for them.

    Raises:
        InvalidValueError: fewer layers with parameters than runs.
    """
    weights = [float(layer.activation_bytes or 1) for layer in graph.layers] if seconds is None else list(seconds)
    size = len(weights)
    with_parameters = [bool(layer.parameters) for layer in graph.layers]
    if sum(with_parameters) < count:
        raise InvalidValueError(
            f"{graph.model} has {sum(with_parameters)} layers with parameters, fewer than {count} partitions (use "
            "fewer ranks, or finer layers)"
        )
    # best[n][stop]: the least largest sum of n runs of the layers before ``stop``, and where the last of them starts.
    best: list[list[tuple[float, int]]] = [[(0.0 if stop == 0 else float("inf"), 0) for stop in range(size + 1)]]
    for _ in range(count):
        before = best[-1]
        best.append(
            [
                min(
                    (
                        (max(before[start][0], sum(weights[start:stop])), start)
                        for start in range(stop)
                        if any(with_parameters[start:stop])
                    ),
                    default=(float("inf"), 0),
                )
                for stop in range(size + 1)
            ]
        )
    runs, stop = [], size
    for number in range(count, 0, -1):
        start = best[number][stop][1]
        runs.append(tuple(range(start, stop)))
        stop = start
    return tuple(reversed(runs))
