"""Controls of a plan, and buttons that set one to a value with which there is a plan."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import ipywidgets

from deeppool.cluster.cluster import PRESETS, Cluster
from deeppool.units import format_bit_rate
from deeppool.widgets.controls import choice, grid, steps
from deeppool.widgets.exploration import PlanQuery, at_speed
from deeppool.widgets.panel import Panel

LIMITS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 16.0, math.inf)
"""Values of the limit slider, finer where plans change most."""
GPUS, SAMPLES = [2**power for power in range(11)], [2**power for power in range(17)]
SPEEDS = tuple(gigabits * 1e9 / 8 for gigabits in (1, 10, 25, 50, 100, 200, 400, 800, 1600, 2400, 3600, 4800))
"""Bytes per second of a GPU's link, each direction."""


class PlanControls:
    """The controls of a plan, as parts of a panel; call :meth:`connect` when the panel exists."""

    def __init__(self, *, gpus: int, global_batch: int, amplification_limit: float | None, cluster: Cluster) -> None:
        """Takes the initial values, as for :class:`deeppool.widgets.AmplificationExplorer`."""
        self._clusters = {**PRESETS, cluster.name: cluster}
        limit = math.inf if amplification_limit is None else amplification_limit
        self.limit = steps("amplification limit (×)", LIMITS, limit, _limit_text)
        self.gpus = steps("GPUs", GPUS, gpus)
        self.global_batch = steps("global batch (samples)", SAMPLES, global_batch)
        self.speed = steps("link speed of a GPU", SPEEDS, 0.0, _speed_text)
        self.cluster = choice("cluster", tuple(self._clusters), cluster.name)
        self.all = (self.limit, self.gpus, self.global_batch, self.speed, self.cluster)
        self.grid = grid(*self.all)
        self.corrections = ipywidgets.HBox()
        """Buttons that set a control to a value with which there is a plan; empty while there is one."""

    def connect(self, panel: Panel, on_change: Callable[[object], None]) -> None:
        """Registers a callback of every control; its errors, and those of corrections, appear in the panel."""
        self._panel = panel
        for control in self.all:
            control.observe(panel.guarded(on_change), "value")

    @property
    def query(self) -> PlanQuery:
        """What the controls say, but for the limit."""
        cluster = replace(self._clusters[self.cluster.value], gpus=self.gpus.value)
        return PlanQuery(at_speed(cluster, self.speed.value or None), self.global_batch.value)

    @property
    def amplification_limit(self) -> float | None:
        """The limit; None: no limit."""
        return None if math.isinf(self.limit.value) else self.limit.value

    def offer_gpus(self, most: int) -> None:
        """Offers to use as many GPUs as there can be, at most ``most``."""
        self._offer(self._fewer_gpus(most))

    def offer_batch_or_gpus(self) -> None:
        """Offers to change the batch or the GPUs where there are too few samples for them."""
        gpus, batch = self.gpus.value, self.global_batch.value
        if gpus <= batch:
            self.corrections.children = ()
            return
        enough = min((size for _, size in self.global_batch.options if size >= gpus), default=batch)
        self._offer({f"use batch {enough:,}": (self.global_batch, enough), **self._fewer_gpus(batch)})

    def _fewer_gpus(self, most: int) -> dict[str, tuple[ipywidgets.Widget, int]]:
        fitting = max(count for _, count in self.gpus.options if count <= most)
        return {f"use {fitting:,} GPU{'s' * (fitting > 1)}": (self.gpus, fitting)}

    def _offer(self, changes: Mapping[str, tuple[ipywidgets.Widget, int]]) -> None:
        """Shows a button per change, which sets a control to a value."""
        panel, buttons = self._panel, []
        for text, (control, value) in changes.items():
            button = ipywidgets.Button(description=text, layout={"width": "auto"})
            panel.on_click(button, functools.partial(setattr, control, "value", value))
            buttons.append(button)
        self.corrections.children = tuple(buttons)


def _limit_text(limit: float) -> str:
    return "no limit" if math.isinf(limit) else f"{limit:g}"


def _speed_text(speed: float) -> str:
    return format_bit_rate(speed) if speed else "cluster's own"
