"""An iteration with overlapping all-reduces, event by event: an oracle without a closed formula for its end.

Lanes are processes that wake one another; each GPU has its all-reduces in the order of the model, the last layer's
first, and one starts when it is ready and the next of all its GPUs. A large gradient may have an all-reduce of its own;
others share them, so many bytes in each as the definition says, and none waits for a gradient on other GPUs. Gradients
of parameters that several layers use are summed by the GPUs of all, and share none with others where these are more
than the first one's: they take as long as over the GPUs of any of them, or longer, and are ready when these GPUs have
no backward left before the first layer's. What is computed or moved beside an all-reduce on one of its GPUs advances
at a lower rate. Prices come from ``Definition``, nothing from ``deeppool.planning``.
"""

import heapq
import math
from collections import defaultdict
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
        self.all_reduces = {}
        self.tasks, self.flying = [], {}
        self.model = [layer for layer in self.in_order(definition.tree) if layer is not None]
        self.users = [
            [self.gpus(index) for index, other in enumerate(definition.layers) if other.parameters == own.parameters]
            for own in definition.layers
        ]
        """Per layer the GPUs of each layer that uses its parameters."""
        self.wider = {
            layer
            for layer, users in enumerate(self.users)
            if definition.gradient_bytes(layer) and len(set().union(*users)) > places[layer][0]
        }
        """Layers whose parameters others use on more GPUs."""
        self.seconds = self.fill_buckets()
        self.waiting = [layer for layer in reversed(self.model) if self.seconds[layer] > 0]
        """Layers whose all-reduces have not ended."""
        self.computed = set()

    def gpus(self, layer):
        count, start = self.places[layer]
        return range(start, start + count)

    def summing(self, layer):
        """The GPUs of the all-reduce after a layer."""
        return set().union(*self.users[layer]) if layer in self.wider else set(self.gpus(layer))

    def fill_buckets(self):
        """The seconds of the all-reduce that follows a layer's backward."""
        seconds, filling, stage, rule = defaultdict(float), {}, None, self.definition.buckets

        def complete(members):
            size = sum(map(self.definition.gradient_bytes, members))
            users = [gpus for layer in members for gpus in self.users[layer]] if members[0] in self.wider else []
            sets = [self.summing(members[0]), *users]
            seconds[members[-1]] += max(self.definition.all_reduce(size, gpus) for gpus in sets)

        for layer in [*reversed(list(self.in_order(self.definition.tree))), None]:
            here = None if layer is None else self.places[layer]
            if here is None or here != stage:
                for members, _ in filling.values():
                    if members:
                        complete(members)
                filling, stage = {}, here
            size = 0 if layer is None else self.definition.gradient_bytes(layer)
            if not size:
                continue
            if rule.alone is not None and size >= rule.alone:
                complete([layer])
                continue
            gpus = frozenset(self.summing(layer))
            members, enough = filling.get(gpus, ([], rule.first or rule.size))
            filling[gpus] = [*members, layer], enough
            if sum(map(self.definition.gradient_bytes, [*members, layer])) >= enough:
                complete([*members, layer])
                filling[gpus] = [], rule.size
        return seconds

    def in_order(self, part):
        """The layers of a forward pass, with None where lanes begin or end."""
        if isinstance(part, int):
            yield part
        elif isinstance(part, NonSeriesParallel):
            yield from part.layers
        elif isinstance(part, ParallelBlock):
            lanes = dict.fromkeys(self.places[branch.layers[0]][1] for branch in part.branches)
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
        assert not self.waiting, "an all-reduce never started"
        return self.end + max(self.updates().values(), default=0.0), self.all_reduces

    def updates(self):
        """Per GPU the seconds in which it updates the parameters of its layers."""
        seconds = defaultdict(float)
        for layer, users in enumerate(self.users):
            for gpu in set().union(*users):
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
            self.computed.add(layer)
            self.start_what_can()
            self.tasks.append(_Task(self.moves(layer) / 2, gpus, done))

        count, start = self.places[layer]
        gpus = range(start, start + count)
        seconds = self.times(layer).backward + self.definition.copied(layer, count)
        self.tasks.append(_Task(seconds, gpus, computed))

    def start_what_can(self):
        taken = set()
        for layer in self.waiting:
            summing = self.summing(layer)
            if layer not in self.all_reduces and not taken & summing and self.ready(layer):
                self.all_reduces[layer] = self.now, self.now + self.seconds[layer]
                self.flying[layer] = summing
                self.after(self.seconds[layer], lambda layer=layer: self.finish(layer))
            taken |= summing

    def ready(self, layer):
        place = self.model.index(layer)
        later = (other for other in self.model[place:] if self.summing(layer) & {*self.gpus(other)})
        return self.computed.issuperset(later if layer in self.wider else [layer])

    def finish(self, layer):
        del self.flying[layer]
        self.waiting.remove(layer)
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
