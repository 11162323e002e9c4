"""Runs a segment layer by layer with a profiler range for each, named as in the plan."""

from contextlib import AbstractContextManager
from typing import Any

from torch import fx

from deeppool.device.profiler_ranges import record_range
from deeppool.graph.capture.extract import LAYER


class LayerRanges(fx.Interpreter):
    """Interpreter of a segment; consecutive nodes of a layer share a range."""

    def __init__(self, module: fx.GraphModule) -> None:
        """Runs nothing yet."""
        super().__init__(module)
        self._layer = ""
        self._range: AbstractContextManager[object] | None = None

    def run_node(self, n: fx.Node) -> Any:
        """Runs one node, in the range of its layer."""
        layer = n.meta.get(LAYER, self._layer)
        if layer != self._layer:
            self._leave()
            self._layer, self._range = layer, record_range(layer)
            self._range.__enter__()
        return super().run_node(n)

    def run(self, *args: Any, **options: Any) -> Any:
        """Runs the segment."""
        try:
            return super().run(*args, **options)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._layer, self._range = "", None
