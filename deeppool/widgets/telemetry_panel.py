"""Live utilisation and memory of cores and GPUs in a notebook."""

import html
from collections.abc import Sequence
from dataclasses import replace

import ipywidgets

from deeppool.figures import theme
from deeppool.figures.telemetry import Lines, axes, busy, memory
from deeppool.telemetry import Sampler, Telemetry
from deeppool.units import format_bytes
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.panel import Panel

SHOWN = 240
"""Number of newest samples displayed; all of them are sent to the page with each new one."""


class TelemetryPanel(Panel):
    """Shows the samples of a sampler until that is closed.

    By default it starts its own sampler, which its button stops. It also updates while a cell is running; button
    presses are handled when the kernel is idle.
    """

    def __init__(self, sampler: Sampler | None = None) -> None:
        """Starts following the sampler."""
        self.sampler, self._is_own = sampler or Sampler(), sampler is None
        layout = {"height": 260, "margin": {"l": 40, "r": 10, "t": 30, "b": 30}, "showlegend": True}
        self.figure = LiveFigure(axes().update_layout(layout, template=theme.template(dark=False)))
        self.status, self.stop = ipywidgets.HTML(), ipywidgets.Button(description="Stop sampling")
        super().__init__([self.figure, self.status, self.stop])
        self._draw()
        self.sampler.watch(self._draw)
        self.on_click(self.stop, self._end)
        self.on_theme(self._recolour)

    def close(self) -> None:
        """Removes the panel from the page; ends the sampler that it started."""
        if self._is_own:
            self.sampler.close()
        super().close()

    def _draw(self) -> None:
        telemetry = self.sampler.telemetry()
        shown = replace(telemetry, samples=telemetry.samples[-SHOWN:])
        self.status.value = describe(telemetry)
        with self.figure.turn, self.figure.batch_update():
            for column, lines in enumerate((busy(shown), memory(shown)), start=1):
                _draw_lines(self.figure, lines, [sample.time for sample in shown.samples], column)

    def _recolour(self) -> None:
        with self.figure.turn:
            self.figure.update_layout(template=theme.template(dark=self.dark))

    def _end(self) -> None:
        self.sampler.close()
        self.stop.disabled = True


def describe(telemetry: Telemetry) -> str:
    """Returns HTML with the power and energy of each GPU, or why none is shown, and the processes, busiest first.

    All of them at the time of the last sample, since when a run may have ended, and its processes with it.
    """
    rows = [html.escape(f"no GPU: {telemetry.gpu_problem}")] if telemetry.gpu_problem else []
    if not telemetry.samples:
        return "<br>".join([*rows, "no sample yet"])
    last = telemetry.samples[-1]
    rows.append(f"at {last.time:.1f} s:")
    for index, (name, gpu) in enumerate(zip(telemetry.gpus, last.gpus, strict=True)):
        power = "power unknown" if gpu.power is None else f"{gpu.power:.0f} W"
        energy = "" if gpu.energy is None else f", {gpu.energy:.0f} J so far"
        rows.append(html.escape(f"GPU {index} ({name}): {power}{energy}"))
    rows += [
        html.escape(f"{process.name} ({process.pid}): {process.cpu:.2f} cores, {format_bytes(process.memory)}")
        for process in sorted(last.processes, key=lambda process: -process.cpu)
    ]
    return "<br>".join(rows)


def _draw_lines(figure: LiveFigure, lines: Lines, times: Sequence[float], column: int) -> None:
    axis = "x" if column == 1 else f"x{column}"
    drawn = {trace.name: trace for trace in figure.data if trace.xaxis == axis}
    for name, values in lines.items():
        if name in drawn:
            drawn[name].x, drawn[name].y = times, values
        else:
            figure.add_scatter(name=name, x=times, y=values, mode="lines", row=1, col=column)
