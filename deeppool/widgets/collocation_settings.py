"""The controls that say what shall run beside a plan: which job, how it shares the devices, and for how long."""

import html
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from deeppool.base.run_control import refusal
from deeppool.base.sharing import MEANINGS, POLICIES, Policy
from deeppool.collocation.job_queue import BATCH, BackgroundJob
from deeppool.job import Job

MODELS = ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5")
"""That are offered as a background, small ones; any other name may be typed."""
LABEL = {"description_width": "13em"}
WIDE = ipywidgets.Layout(width="36em")
LOOSEST = 50.0
"""Percent: the loosest bound that the slider offers."""
STEP = 0.5


class CollocationSettings(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Name and batch of the background, policy, bound, seconds; each with a label, and its unit."""

    def __init__(
        self, background: str | Job | BackgroundJob, policy: Policy, max_slowdown: float | None, seconds: float
    ) -> None:
        """Shows these values.

        Args:
            background: a name, which may be changed, or a job of the user's own, which may not.
            policy: of :data:`deeppool.base.sharing.POLICIES`.
            max_slowdown: bound on the foreground's slowdown, 0.03 for 3 %; None: none is held.
            seconds: to measure.
        """
        self._own = None if isinstance(background, str) else background
        name, batch = _name_and_batch(background)
        self.background = ipywidgets.Combobox(
            value=name, options=MODELS, description="Background job", style=LABEL, layout=WIDE
        )
        self.batch = ipywidgets.BoundedIntText(
            batch, min=1, max=2**20, description="Its batch (samples)", style=LABEL, layout=WIDE
        )
        self.policy = ipywidgets.Dropdown(
            options=list(POLICIES), value=policy, description="Policy", style=LABEL, layout=WIDE
        )
        self.meaning = ipywidgets.HTML()
        self.hold = ipywidgets.Checkbox(
            max_slowdown is not None, description="Hold a bound", style=LABEL, layout=WIDE, indent=True
        )
        percent = 3.0 if max_slowdown is None else 100 * max_slowdown
        self.bound = ipywidgets.FloatSlider(
            percent,
            min=min(STEP, percent),
            max=max(LOOSEST, percent),
            step=STEP,
            description="Bound (% slower)",
            readout_format=".1f",
            style=LABEL,
            layout=WIDE,
        )
        self.why = ipywidgets.HTML()
        self.seconds = ipywidgets.BoundedFloatText(
            seconds, min=1.0, max=86400.0, step=10.0, description="Measure for (s)", style=LABEL, layout=WIDE
        )
        super().__init__(
            [
                self.background,
                self.batch,
                ipywidgets.HBox([self.policy, self.meaning]),
                ipywidgets.HBox([self.hold, self.why]),
                self.bound,
                self.seconds,
            ]
        )
        for control in (self.policy, self.hold):
            control.observe(lambda _: self.free(), "value")
        self.free()

    @property
    def max_slowdown(self) -> float:
        """What the slider says, as a fraction."""
        return float(self.bound.value) / 100

    def on_bound(self, callback: Callable[[float], None]) -> None:
        """Calls a function with every bound that the slider is moved to, as a fraction, while it moves."""
        self.bound.observe(lambda _: callback(self.max_slowdown), "value")

    def arguments(self) -> dict[str, Any]:
        """For :func:`deeppool.launch`."""
        seconds = float(self.seconds.value)
        if self.policy.value == "none":
            return {"background": None, "policy": None, "seconds": seconds}
        found: dict[str, Any] = {"background": self._own, "policy": self.policy.value, "seconds": seconds}
        if self._own is None:
            found |= {"background": self.background.value.strip(), "background_batch": int(self.batch.value)}
        return found | ({"max_slowdown": self.max_slowdown} if self.hold.value else {})

    def free(self) -> None:
        """Before a run: all may be changed that means something."""
        none = self.policy.value == "none"
        for control in (self.background, self.batch):
            control.disabled = none or self._own is not None
        self.policy.disabled = self.seconds.disabled = False
        self.hold.disabled = none
        self.bound.disabled = none or not self.hold.value
        self.meaning.value = _note(MEANINGS[self.policy.value])
        changeable = self.hold.value or refusal(POLICIES[self.policy.value]) is None
        self.why.value = _note(
            "Without a background there is nothing to bind."
            if none
            else "The bound can be changed while it runs."
            if changeable
            else "Without a bound from the start, none can be set while it runs."
        )

    def lock(self, why_no_bound: str | None) -> None:
        """During a run: nothing may be changed but its bound, and where that may not either, it says why."""
        for control in (self.background, self.batch, self.policy, self.hold, self.seconds):
            control.disabled = True
        self.bound.disabled = why_no_bound is not None
        self.why.value = _note(
            "The bound can be changed now." if why_no_bound is None else f"No bound can be set: {why_no_bound}."
        )

    @property
    def controls(self) -> Sequence[ipywidgets.Widget]:
        """Those that a user moves, from the top."""
        return self.background, self.batch, self.policy, self.hold, self.bound, self.seconds


def _name_and_batch(background: str | Job | BackgroundJob) -> tuple[str, int]:
    if isinstance(background, str):
        return background, BATCH
    return (background.model if isinstance(background, Job) else background.name), background.batch


def _note(text: str) -> str:
    return f'<span style="color: var(--jp-ui-font-color2)">{html.escape(text)}</span>'
