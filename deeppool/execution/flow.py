"""What flows between stages: activations to the stages that read them, and their gradients back.

A rank sends as soon as a stage has computed, and waits for a value only where it needs it. All ranks meet all
transfers in the order of the stages that make the values, whoever waits for them when: that is how sender and
receiver find each other, and it lets a branch start while another one, on other ranks, still runs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import fx

from deeppool.base.timeline import SpanKind
from deeppool.collectives.layout import Layout
from deeppool.execution.exchange import Exchange, PendingTensor, SampleCopy
from deeppool.execution.stages import Stage
from deeppool.graph.capture.extract import Segment

Values = Mapping[fx.Node, torch.Tensor]
SpanOf = Callable[[SpanKind, int, str], AbstractContextManager[None]]
"""Notes what a rank does: kind, stage and operation."""


class Routes:
    """Which values go from which stage to which: what the plan says, for every iteration."""

    def __init__(self, stages: Sequence[Stage], segments: Sequence[Segment]) -> None:
        """Finds the stage that makes each input of each stage."""
        self.stages = stages
        maker = {node: index for index, segment in enumerate(segments) for node in segment.outputs}
        self.onward: list[dict[int, list[fx.Node]]] = [{} for _ in stages]
        """Per stage, the later stages that read its values, and which."""
        self.back: list[dict[int, list[fx.Node]]] = [{} for _ in stages]
        """Per stage, the earlier ones whose values it reads, and which of them have gradients."""
        for reader, segment in enumerate(segments):
            for node in segment.inputs:
                if node.op == "placeholder":
                    continue
                self.onward[maker[node]].setdefault(reader, []).append(node)
                if node.meta["val"].is_floating_point():
                    self.back[reader].setdefault(maker[node], []).append(node)

    def layout(self, stage: int) -> Layout:
        """Of a stage's samples."""
        return self.stages[stage].layout


class Flow:
    """The values of one global batch, as one rank has them."""

    def __init__(self, routes: Routes, exchange: Exchange, types: Mapping[fx.Node, torch.dtype], span: SpanOf) -> None:
        """Nothing has been computed yet.

        Args:
            routes: of the plan.
            exchange: this rank's.
            types: of every value between stages.
            span: notes transfers, and the waits for them.
        """
        self._routes, self._exchange, self._types, self._span = routes, exchange, types, span
        self._inputs: dict[int, dict[fx.Node, PendingTensor]] = defaultdict(dict)
        """Per stage, its inputs."""
        self._gradients: dict[int, dict[int, dict[fx.Node, PendingTensor]]] = defaultdict(dict)
        """Per stage that made values, and stage that read them, their gradients."""

    def send_forward(self, stage: int, outputs: Values) -> None:
        """Sends a stage's values to those that read them; every rank calls it, ``outputs`` is empty outside."""
        for reader, nodes in self._routes.onward[stage].items():
            self._inputs[reader] |= self._start(stage, reader, nodes, outputs, reader, "→")

    def inputs(self, stage: int) -> dict[fx.Node, torch.Tensor]:
        """What a stage reads of earlier ones, on a rank that runs it."""
        return self._wait(stage, "→", self._inputs.pop(stage, {}))

    def send_backward(self, stage: int, gradients: Values) -> None:
        """Sends the gradients of a stage's inputs to the stages that made them, as :meth:`send_forward` does."""
        for maker, nodes in self._routes.back[stage].items():
            self._gradients[maker][stage] = self._start(stage, maker, nodes, gradients, stage, "←")

    def gradients(self, stage: int) -> dict[fx.Node, torch.Tensor]:
        """Of a stage's values, added up over all stages that read them, in the order in which those ran."""
        total: dict[fx.Node, torch.Tensor] = {}
        for reader, arrivals in self._gradients.pop(stage, {}).items():
            for node, gradient in self._wait(reader, "←", arrivals).items():
                total[node] = total[node] + gradient if node in total else gradient
        return total

    def _start(
        self, source: int, destination: int, nodes: Sequence[fx.Node], values: Values, named: int, arrow: str
    ) -> dict[fx.Node, PendingTensor]:
        """Of this rank's shards in the destination; ``named`` is the stage that a transfer is noted under."""
        here, there = self._routes.layout(source), self._routes.layout(destination)
        rank = self._exchange.rank
        if here == there:
            return {node: PendingTensor(values[node]) for node in nodes if node in values}
        if rank not in here.gpus and rank not in there.gpus:
            return {}
        with self._span("reshard", named, f"{arrow} {self._routes.stages[named].name}"):
            moves = [SampleCopy(values.get(node), here, there, self._like(node, values)) for node in nodes]
            arrivals = self._exchange.start(moves)
        return dict(zip(nodes, arrivals, strict=True)) if rank in there.gpus else {}

    def _wait(self, named: int, arrow: str, arrivals: Mapping[fx.Node, PendingTensor]) -> dict[fx.Node, torch.Tensor]:
        if not any(arrival.is_pending for arrival in arrivals.values()):
            return {node: arrival.wait() for node, arrival in arrivals.items()}
        with self._span("reshard", named, f"{arrow} {self._routes.stages[named].name}"):
            return {node: arrival.wait() for node, arrival in arrivals.items()}

    def _like(self, node: fx.Node, values: Values) -> torch.Tensor:
        """A value's own tensor, or an empty one of its kind."""
        if node in values:
            return values[node]
        shape = [int(size) for size in node.meta["val"].shape[1:]]
        return torch.empty((0, *shape), dtype=self._types[node], device=self._exchange.device)
