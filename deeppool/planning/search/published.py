"""The published search: DeepPool's Algorithm 1 and its graph reduction (section 4.2), with their faults.

For comparison with the exact search (see ``search``) on the same costs. What the paper prints:

- Algorithm 1, per layer and GPU count g: of the GPU counts h of the layer before, in ascending order, take
  over h if ``Amp(i-1, h) <= max(bestAmp, AmpLimit) and S[i-1][h] + comm <= bestS``. So one GPU is always
  taken first, over the limit or not; of two that take equally long the larger count wins; and the limit is
  asked about the layer *before*, whose own predecessor is fixed by then. Hence plans over the limit, and
  plans slower than the optimum.
- A block between a branching and a joining layer becomes an edge: for each GPU count of the branching layer,
  Algorithm 1 on every branch and its step into the joining layer; the branch that takes longest is critical,
  each other one runs beside it on a new set of GPUs if "communication overheads to move samples to and from"
  that set do not "increase the total training time or overshoot the amplification limit", else after it on
  the same GPUs. The sets are not added up, so the GPU budget may break.

Where the paper leaves a choice, the reading here, and where it comes from:

- ``Amp(0, h)`` and what leads from layer 0 cost nothing: "Initialize S[0][g] = 0". Data is loaded where needed.
- The plan's end, "backtrace from L_L … while obeying the amplification limit": the printed test once more, as
  if a layer without cost followed the last one. The authors' planner takes the least S, over the limit or not.
- ``T`` of a joining layer is "time spent on L_i": its transfers in, summed over the branches, and its own
  time, not the time of the branches, although the reduction makes them part of an edge. With them no joining
  layer would keep any limit. The authors' planner (searchBranch in github.com/DeepPoolML/DeepPool) does so too.
- The two conditions for a new set, from the same planner (backwardBranch): branches by descending time; beside
  if the moves take no longer than what runs already (then no order is slower than one after another), and if
  the branch with its moves takes at most the limit times as long as without. A new set begins right behind
  the GPUs that the samples come from or go to, and takes all samples: none is there already.
- A direct edge from the branching to the joining layer needs no GPUs and runs beside all branches.

What the paper does not define, and the rule here: a block inside a branch is reduced first, and is then an
edge of that branch, at its end one into the joining layer; layers that are no chains of blocks at all (a
region, see graph/series_parallel.py) take one GPU count as a whole, one after another, and stand for a branch of one
layer with the largest amplification of theirs.

Complexity: O(layers x counts^2) on a chain, times counts inside a block.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deeppool.costs.amplification import TOLERANCE
from deeppool.costs.table import CostTable, Floats
from deeppool.graph.series_parallel import INPUT, NonSeriesParallel, ParallelBlock, Series, decompose
from deeppool.planning.plan import PublishedClaim

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PublishedResult:
    """Choices of the published search, and its own prediction for them."""

    choices: tuple[int, ...]
    """Index into ``gpu_counts`` of each layer."""
    claim: PublishedClaim


@dataclass(frozen=True, slots=True)
class _Traced:
    """The choices behind one number of a table."""

    choices: dict[int, int]
    gpus: int
    """The most GPUs that these layers need at once."""


_Trace = Callable[[int, int], _Traced]


@dataclass(frozen=True, slots=True)
class _Table:
    """S and Amp of one layer, per GPU count of the branching layer before it (rows; one row for data)."""

    time: Floats
    """S of the layer: seconds from the branching layer's end to this layer's."""
    amplification: Floats
    """Amp of the layer, by T."""
    fetch: Floats
    """Seconds that the branching layer's samples take longer on their way to a new set of GPUs."""
    trace: _Trace


@dataclass(frozen=True, slots=True)
class _Edge:
    """tr: an edge, or a block seen as one; rows are the GPU counts before it, columns those after it."""

    time: Floats
    arrival: Floats
    """Seconds of it that are transfers into the layer after it, and so part of that layer's T."""
    fetch: Floats
    """Seconds that the samples take longer on their way to a new set of GPUs, as in :class:`_Table`."""
    trace: _Trace


def search_published(costs: CostTable, limit: float | None) -> PublishedResult:
    """Returns the plan that DeepPool's paper makes under a per-layer amplification limit (None: no limit)."""
    solver = _Solver(costs, np.inf if limit is None else limit * (1 + TOLERANCE))
    table = solver.series(decompose([layer.predecessors for layer in costs.graph.layers]), INPUT)
    end = np.zeros((len(costs.gpu_counts), 1))
    last = int(solver.best_predecessor(table.time, table.amplification, end)[0, 0])
    traced = table.trace(0, last)
    choices = tuple(traced.choices[layer] for layer in range(len(costs.graph.layers)))
    claim = PublishedClaim(iteration_time=float(table.time[0, last]), gpus=traced.gpus)
    return PublishedResult(choices, claim)


class _Solver:
    """The published search on one cost table under one limit."""

    def __init__(self, costs: CostTable, limit: float) -> None:
        self.costs = costs
        self.limit = limit
        self.counts = np.array(costs.gpu_counts, dtype=float)
        self.every = np.arange(len(costs.gpu_counts))[None, :]
        self.new_set = new_set_terms(costs)

    def best_predecessor(self, time: Floats, amp: Floats, edge: Floats) -> Indices:
        """Runs Algorithm 1's inner loop over h, for every row and GPU count g after the edge at once: (rows, g) → h.

        Args:
            time: (rows, h) S of the layer before.
            amp: (rows, h) Amp of the layer before.
            edge: (h, g) tr.
        """
        shape = len(time), edge.shape[1]
        best_amp, best_time = np.full(shape, np.inf), np.full(shape, np.inf)
        chosen = np.zeros(shape, dtype=np.intp)
        for h in range(len(edge)):
            this_amp, this_time = amp[:, h, None], time[:, h, None] + edge[h]
            taken = (this_amp <= np.maximum(best_amp, self.limit)) & (this_time <= best_time)
            best_time = np.where(taken, this_time, best_time)
            best_amp = np.where(taken, np.minimum(best_amp, this_amp), best_amp)
            chosen[taken] = h
        return chosen

    def series(self, series: Series, fork: int) -> _Table:
        """Runs Algorithm 1; the branching layer before the series, at the GPU count of the row, is its layer 0."""
        size = 1 if fork == INPUT else len(self.counts)
        time = np.where(np.eye(size, dtype=bool), 0.0, np.inf)
        amp, fetch = np.zeros_like(time), np.zeros_like(time)
        edges: list[_Edge] = []
        sources: list[Indices] = []
        for layer, block, previous in zip(series.layers, series.blocks, (fork, *series.layers[:-1]), strict=True):
            edge = self._plain_edge(previous, layer) if block is None else self._reduce(block, previous, layer)
            source = self.best_predecessor(time, amp, edge.time)
            compute, sync = self.costs.compute[layer], self.costs.sync[layer]
            time = np.take_along_axis(time, source, axis=1) + edge.time[source, self.every] + compute + sync
            amp = (edge.arrival[source, self.every] + compute + sync) * self.counts / compute[0]
            fetch = np.take_along_axis(fetch, source, axis=1) if edges else edge.fetch[source, self.every]
            edges.append(edge)
            sources.append(source)

        def trace(row: int, last: int) -> _Traced:
            choices: dict[int, int] = {}
            gpus = 0
            for layer, edge, source in zip(reversed(series.layers), reversed(edges), reversed(sources), strict=True):
                before = int(source[row, last])
                between = edge.trace(before, last)
                choices |= {layer: last, **between.choices}
                gpus = max(gpus, self.costs.gpu_counts[last], between.gpus)
                last = before
            return _Traced(choices, gpus)

        return _Table(time, amp, fetch, trace)

    def _plain_edge(self, source: int, layer: int) -> _Edge:
        moved, away = self._moves(source, layer)
        return _Edge(moved, moved, away - moved, lambda *_: _Traced({}, 0))

    def _moves(self, source: int, layer: int) -> tuple[Floats, Floats]:
        """Returns (from, to) seconds to bring samples to a layer, and from or to a new set; (1, to) for data."""
        if source == INPUT:
            nothing = np.zeros((1, len(self.counts)))
            return nothing, nothing
        consumer = self.costs.graph.layers[layer]
        size = consumer.input_bytes[consumer.predecessors.index(source)]
        latency, per_byte = self.new_set
        away: Floats = 2 * (latency + size * per_byte)
        return self.costs.comm(size), away

    def _reduce(self, block: ParallelBlock | NonSeriesParallel, fork: int, join: int) -> _Edge:
        """Reduces the branches between a branching and a joining layer to an edge."""
        if isinstance(block, NonSeriesParallel):
            found = [self._to_join(self._region(block, fork), block.layers, None, join)]
        else:
            found = [self._branch(branch, fork, join) for branch in block.branches]
        edges, returns = zip(*found, strict=True)
        moves = np.stack([edge.fetch + back for edge, back in zip(edges, returns, strict=True)])
        elapsed, beside = merge(np.stack([edge.time for edge in edges]), moves, self.limit)
        arrival, fetch = sum(edge.arrival for edge in edges), sum(edge.fetch for edge in edges)
        reads_fork = fork in self.costs.graph.layers[join].predecessors
        if reads_fork if isinstance(block, NonSeriesParallel) else block.direct:
            moved, away = self._moves(fork, join)
            elapsed, arrival, fetch = np.maximum(elapsed, moved), arrival + moved, fetch + away - moved

        def trace(before: int, after: int) -> _Traced:
            parts = [edge.trace(before, after) for edge in edges]
            own_set = beside[:, before, after]
            gpus = max(part.gpus for part, own in zip(parts, own_set, strict=True) if not own)
            gpus += sum(part.gpus for part, own in zip(parts, own_set, strict=True) if own)
            return _Traced({layer: choice for part in parts for layer, choice in part.choices.items()}, gpus)

        return _Edge(elapsed, arrival, fetch, trace)

    def _branch(self, branch: Series, fork: int, join: int) -> tuple[_Edge, Floats]:
        """Returns a branch up to the joining layer, and the extra seconds of its results from a set of their own.

        The paper restricts the branching layer to one GPU count after another: they are the rows here.
        """
        tail = None if branch.tail is None else self._reduce(branch.tail, branch.layers[-1], join)
        return self._to_join(self.series(branch, fork), branch.layers[-1:], tail, join)

    def _to_join(self, table: _Table, ends: tuple[int, ...], tail: _Edge | None, join: int) -> tuple[_Edge, Floats]:
        """Returns the last layers of a branch, and perhaps a tail after them, up to the joining layer."""
        shape = (len(self.counts), len(self.counts))
        moved, away = np.zeros(shape), np.zeros(shape)
        for source in set(self.costs.graph.layers[join].predecessors) & set(ends):
            here, there = self._moves(source, join)
            moved, away = moved + here, away + there
        elapsed, arriving = moved, moved
        if tail is not None:
            # Its results are assumed to take no longer from a new set.
            elapsed, arriving = np.maximum(moved, tail.time), moved + tail.arrival
        last = self.best_predecessor(table.time, table.amplification, elapsed)
        time = np.take_along_axis(table.time, last, axis=1) + elapsed[last, self.every]
        fetch = np.take_along_axis(table.fetch, last, axis=1)

        def trace(before: int, after: int) -> _Traced:
            option = int(last[before, after])
            found = table.trace(before, option)
            if tail is None:
                return found
            rest = tail.trace(option, after)
            return _Traced({**found.choices, **rest.choices}, max(found.gpus, rest.gpus))

        return _Edge(time, arriving[last, self.every], fetch, trace), (away - moved)[last, self.every]

    def _region(self, region: NonSeriesParallel, fork: int) -> _Table:
        """Returns the table of a region with all layers on one GPU count: no transfers inside."""
        rows = 1 if fork == INPUT else len(self.counts)
        time, worst, fetch = (np.zeros((rows, len(self.counts))) for _ in range(3))
        for layer in region.layers:
            reads_fork = fork in (self.costs.graph.layers[layer].predecessors or (INPUT,))
            moved, away = self._moves(fork, layer) if reads_fork else (0.0, 0.0)
            spent = moved + self.costs.compute[layer] + self.costs.sync[layer]
            time = time + spent
            worst = np.maximum(worst, spent * self.counts / self.costs.compute[layer, 0])
            fetch = fetch + away - moved
        gpu_counts = self.costs.gpu_counts
        return _Table(time, worst, fetch, lambda _, last: _Traced(dict.fromkeys(region.layers, last), gpu_counts[last]))


def merge(times: Floats, moves: Floats, limit: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns which branches run beside the critical one, and the seconds of all of them.

    Args:
        times: (branch, …) seconds of each branch alone, on the GPUs of the critical one.
        moves: (branch, …) seconds more on a new set of GPUs, to move samples to it and back.
        limit: limit on how much longer a branch may take on a new set, as a multiple of its time.

    Returns:
        (…) seconds of the block, and (branch, …) whether a branch has a new set; the critical one has not.
    """
    order = np.argsort(-times, axis=0, kind="stable")
    sorted_times, sorted_moves = np.take_along_axis(times, order, axis=0), np.take_along_axis(moves, order, axis=0)
    elapsed = sorted_times[0]
    beside = np.zeros(times.shape, dtype=bool)
    for place in range(1, len(times)):
        alone, moved = sorted_times[place], sorted_moves[place]
        apart = (moved <= elapsed) & (alone + moved <= limit * alone)
        elapsed = np.where(apart, np.maximum(elapsed, alone + moved), elapsed + alone)
        np.put_along_axis(beside, order[place][None], apart[None], axis=0)
    return elapsed, beside


def new_set_terms(costs: CostTable) -> tuple[Floats, Floats]:
    """Returns (from, to) seconds one way to the GPUs right behind: however few bytes, and per byte of a sample.

    Every sample moves, so the larger shards' ports are the busiest ones.
    """
    counts, cluster = costs.gpu_counts, costs.network.cluster
    links = [[cluster.link(g + h) for h in counts] for g in counts]
    largest = np.array([[-(-costs.global_batch // min(g, h)) for h in counts] for g in counts])
    latency = np.array([[link.latency for link in row] for row in links])
    return latency, largest / np.array([[link.bandwidth for link in row] for row in links])
