"""An iteration with overlapping all-reduces, event by event: an oracle without a closed formula for its end.

Lanes are processes that wake one another; each GPU keeps a queue of all-reduces, and one starts when it is
first in the queues of all its GPUs. A large gradient may have an all-reduce of its own; others share them, so many
bytes in each as the definition says, and none waits for a gradient on other GPUs. A parameter that several layers use
is summed over
the GPUs of all, after the backward of the first one, and by itself where these are more than the first one's: as long
as over the GPUs of any of them, or longer. What is computed or moved beside an all-reduce on one of its GPUs advances
at a lower rate. Prices come from ``Definition``, nothing from ``deeppool.planning``.
"""

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock


def iteration_with_overlap(definition, places):
    """Seconds of the iteration; and (start, end) of each all-reduce, by the layer whose backward it follows."""
    return _Iteration(definition, places).run()


@dataclass
class _Task:
    """A backward, or a transfer of gradients, that all-reduces slow down."""

    left: float
    gpus: range
    done: Callable[[], None]


class _Iteration:
    def __init__(self, definition, places):
        self.definition, self.places = definition, places
        self.now = self.end = 0.0
        self.events = []
        self.issued = 0
        self.queues = defaultdict(deque)
        self.all_reduces = {}
        self.tasks, self.flying = [], {}
        self.wider = self.tied_on_more_gpus()
        self.buckets = self.fill_buckets()

    def tied_on_more_gpus(self):
        """Seconds of the all-reduce of a layer's parameters that other layers use on more GPUs."""
        found, layers = {}, self.definition.layers
        for layer, own in enumerate(layers):
            users = [
                range(start, start + count)
                for (count, start), other in zip(self.places, layers, strict=True)
                if other.parameters == own.parameters
            ]
            gpus = set().union(*users)
            size = self.definition.gradient_bytes(layer)
            if size and len(gpus) > self.places[layer][0]:
                found[layer] = max(self.definition.all_reduce(size, summing) for summing in (gpus, *users))
        return found

    def fill_buckets(self):
        """The bytes of the all-reduce that follows a layer's backward."""
        ready, small, stage, rule = {}, [], None, self.definition.buckets
        for layer in [*reversed(list(self.in_order(self.definition.tree))), None]:
            here = None if layer is None else self.places[layer]
            if here is None or here != stage:
                if small:
                    ready[small[-1]] = sum(map(self.bytes_of, small))
                small, stage, enough = [], here, rule.first or rule.size
            if layer is None or not self.bytes_of(layer):
                continue
            if rule.alone is not None and self.bytes_of(layer) >= rule.alone:
                ready[layer] = self.bytes_of(layer)
                continue
            small.append(layer)
            if sum(map(self.bytes_of, small)) >= enough:
                ready[layer] = sum(map(self.bytes_of, small))
                small, enough = [], rule.size
        return ready

    def bytes_of(self, layer):
        return 0 if layer in self.wider else self.definition.gradient_bytes(layer)

    def in_order(self, part):
        """The layers of a forward pass, with None where lanes begin or end."""
        if isinstance(part, int):
            yield part
        elif isinstance(part, NonSeriesParallel):
            yield from part.layers
        elif isinstance(part, ParallelBlock):
            lanes = {self.places[branch.layers[0]][1] for branch in part.branches}
            for lane in lanes:
                yield from [None] * (len(lanes) > 1)
                for branch in part.branches:
                    if self.places[branch.layers[0]][1] == lane:
                        yield from self.in_order(branch)
            yield from [None] * (len(lanes) > 1)
        elif part is not None:
            for block, layer in zip(part.blocks, part.layers, strict=True):
                yield from self.in_order(block)
                yield layer
            yield from self.in_order(part.tail)

    def run(self):
        tree = self.definition.tree
        self.walk(tree, 1, lambda: self.walk(tree, -1, lambda: None))
        while self.events or self.tasks:
            self.advance()
            self.end = max(self.end, self.now)
        assert not any(self.queues.values()), "an all-reduce never started"
        return self.end + max(self.updates().values(), default=0.0), self.all_reduces

    def updates(self):
        """Per GPU the seconds in which it updates the parameters of its layers."""
        seconds = defaultdict(float)
        for layer, (count, start) in enumerate(self.places):
            for gpu in range(start, start + count):
                seconds[gpu] += self.definition.gradient_bytes(layer) * self.definition.profile.update_per_byte
        return seconds

    def advance(self):
        """Goes to the next event, or to the end of the next task."""
        first = min(self.tasks, key=self.ends, default=None)
        until = math.inf if first is None else self.ends(first)
        event = self.events[0][0] if self.events else math.inf
        for task in self.tasks:
            task.left -= self.rate(task) * (min(until, event) - self.now)
        self.now = min(until, event)
        if until <= event:
            self.tasks.remove(first)
            first.done()
        else:
            heapq.heappop(self.events)[2]()

    def rate(self, task):
        slow = any({*gpus} & {*task.gpus} for gpus in self.flying.values())
        return 1 - self.definition.computing if slow else 1.0

    def ends(self, task):
        rate = self.rate(task)
        if task.left <= 1e-15:
            return self.now
        return self.now + task.left / rate if rate else math.inf

    def after(self, seconds, happen):
        self.issued += 1
        heapq.heappush(self.events, (self.now + seconds, self.issued, happen))

    def walk(self, part, direction, done):
        """Runs a part of the model and then calls ``done``."""
        if part is None:
            self.after(0.0, done)
        elif isinstance(part, int):
            (self.forward if direction > 0 else self.backward)(part, done)
        elif isinstance(part, ParallelBlock):
            lanes = defaultdict(list)
            for branch in part.branches:
                lanes[self.places[branch.layers[0]][1]].append(branch)
            left = len(lanes)

            def lane_done():
                nonlocal left
                left -= 1
                if not left:
                    done()

            for branches in lanes.values():
                self.one_by_one(branches[::direction], direction, lane_done)
        elif isinstance(part, NonSeriesParallel):
            self.one_by_one(part.layers[::direction], direction, done)
        else:
            steps = [step for pair in zip(part.blocks, part.layers, strict=True) for step in pair]
            self.one_by_one([*steps, part.tail][::direction], direction, done)

    def one_by_one(self, steps, direction, done):
        if steps:
            self.walk(steps[0], direction, lambda: self.one_by_one(steps[1:], direction, done))
        else:
            done()

    def forward(self, layer, done):
        self.after(self.moves(layer) / 2 + self.times(layer).forward, done)

    def backward(self, layer, done):
        def computed():
            self.request(layer)
            self.tasks.append(_Task(self.moves(layer) / 2, gpus, done))

        count, start = self.places[layer]
        gpus = range(start, start + count)
        seconds = self.times(layer).backward + self.definition.copied(layer, count)
        self.tasks.append(_Task(seconds, gpus, computed))

    def request(self, layer):
        """An all-reduce joins the queues of its GPUs."""
        count, start = self.places[layer]
        seconds = self.definition.all_reduce(self.buckets.get(layer, 0), range(start, start + count))
        seconds += self.wider.get(layer, 0.0)
        if seconds > 0:
            for gpu in range(start, start + count):
                self.queues[gpu].append((layer, seconds))
            self.start_what_can()

    def start_what_can(self):
        for layer, seconds in {queue[0] for queue in self.queues.values() if queue}:
            count, start = self.places[layer]
            queues = [self.queues[gpu] for gpu in range(start, start + count)]
            if layer not in self.all_reduces and all(queue[0][0] == layer for queue in queues):
                self.all_reduces[layer] = self.now, self.now + seconds
                self.flying[layer] = range(start, start + count)
                self.after(seconds, lambda layer=layer, queues=queues: self.finish(layer, queues))

    def finish(self, layer, queues):
        del self.flying[layer]
        for queue in queues:
            queue.popleft()
        self.start_what_can()

    def times(self, layer):
        definition = self.definition
        return definition.profile.time(layer, math.ceil(definition.batch / self.places[layer][0]))

    def moves(self, layer):
        record = self.definition.layers[layer]
        return sum(
            self.definition.communication(self.places[source], self.places[layer], size)
            for source, size in zip(record.predecessors, record.input_bytes, strict=True)
        )
