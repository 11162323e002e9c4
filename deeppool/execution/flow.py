"""Sends activations to the stages that read them, and their gradients back.

A rank sends as soon as a stage has computed, and waits for a value only where it needs it. All ranks start all
transfers in the order of the stages that produce the values: messages are matched by order, and a branch can start
while another one, on other ranks, still runs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import fx

from deeppool.base.timeline import SpanKind
from deeppool.execution.exchange import Exchange, PendingTensor, SampleCopy
from deeppool.execution.stages import Stage
from deeppool.graph.capture.extract import Segment

Values = Mapping[fx.Node, torch.Tensor]
SpanOf = Callable[[SpanKind, int, str], AbstractContextManager[None]]
"""Records a span: kind, stage and operation."""


class Routes:
    """Values that each stage sends to each other stage."""

    def __init__(self, stages: Sequence[Stage], segments: Sequence[Segment]) -> None:
        """Finds the stage that produces each input of each stage."""
        self.stages = stages
        maker = {node: index for index, segment in enumerate(segments) for node in segment.outputs}
        self.onward: list[dict[int, list[fx.Node]]] = [{} for _ in stages]
        """Per stage, the later stages that read its values, with those values."""
        self.back: list[dict[int, list[fx.Node]]] = [{} for _ in stages]
        """Per stage, the earlier stages whose values it reads, with those that have gradients."""
        for reader, segment in enumerate(segments):
            for node in segment.inputs:
                if node.op == "placeholder":
                    continue
                self.onward[maker[node]].setdefault(reader, []).append(node)
                if node.meta["val"].is_floating_point():
                    self.back[reader].setdefault(maker[node], []).append(node)


class Flow:
    """One rank's activations and gradients between the stages of one global batch."""

    def __init__(self, routes: Routes, exchange: Exchange, types: Mapping[fx.Node, torch.dtype], span: SpanOf) -> None:
        """Starts before the first stage.

        Args:
            routes: routes of the plan.
            exchange: this rank's.
            types: dtype of every value between stages.
            span: records transfers, and the waits for them.
        """
        self._routes, self._exchange, self._types, self._span = routes, exchange, types, span
        self._inputs: dict[int, dict[fx.Node, PendingTensor]] = defaultdict(dict)
        """Inputs per stage."""
        self._gradients: dict[int, dict[int, dict[fx.Node, PendingTensor]]] = defaultdict(dict)
        """Gradients of values, per producing stage and per reading stage."""

    def send_forward(self, stage: int, outputs: Values) -> None:
        """Sends a stage's values to their readers; every rank calls it, with empty ``outputs`` outside the stage."""
        for reader, nodes in self._routes.onward[stage].items():
            self._inputs[reader] |= self._start(stage, reader, nodes, outputs, reader, "→")

    def inputs(self, stage: int) -> dict[fx.Node, torch.Tensor]:
        """Waits for a stage's inputs from earlier stages, on a rank that runs it."""
        return self._wait(stage, "→", self._inputs.pop(stage, {}))

    def send_backward(self, stage: int, gradients: Values) -> None:
        """Sends the gradients of a stage's inputs to the stages that produced them, as :meth:`send_forward` does."""
        for maker, nodes in self._routes.back[stage].items():
            self._gradients[maker][stage] = self._start(stage, maker, nodes, gradients, stage, "←")

    def gradients(self, stage: int) -> dict[fx.Node, torch.Tensor]:
        """Waits for the gradients of a stage's values, summed over their readers in the order in which those ran."""
        total: dict[fx.Node, torch.Tensor] = {}
        for reader, arrivals in self._gradients.pop(stage, {}).items():
            for node, gradient in self._wait(reader, "←", arrivals).items():
                total[node] = total[node] + gradient if node in total else gradient
        return total

    def finish(self) -> None:
        """Waits until everything is sent."""
        self._exchange.finish()

    def _start(
        self, source: int, destination: int, nodes: Sequence[fx.Node], values: Values, named: int, arrow: str
    ) -> dict[fx.Node, PendingTensor]:
        """Starts to transfer values to their shards in the destination; spans carry the name of stage ``named``."""
        here, there = (self._routes.stages[stage].layout for stage in (source, destination))
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
        """Returns a value's own tensor, or an empty one of its dtype and shape."""
        if node in values:
            return values[node]
        shape = [int(size) for size in node.meta["val"].shape[1:]]
        return torch.empty((0, *shape), dtype=self._types[node], device=self._exchange.device)
