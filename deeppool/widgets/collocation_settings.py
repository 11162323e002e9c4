"""Controls for a run with a background job: model, batch, policy, slowdown bound and duration."""

import html
from collections.abc import Callable
from typing import Any

import ipywidgets

from deeppool.base.run_control import refusal
from deeppool.base.sharing import MEANINGS, POLICIES, Policy
from deeppool.collocation.job_queue import BATCH, BackgroundJob
from deeppool.job import Job
from deeppool.widgets.controls import LABEL

MODELS = ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5")
"""Small models that are offered as a background; any other name can be typed."""
FIELD = {"style": LABEL, "layout": {"width": "36em"}}
LOOSEST = 50.0
"""Largest bound on the slider, in percent."""
STEP = 0.5


class CollocationSettings(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Labelled controls for the background's model and batch, the policy, the bound and the duration."""

    def __init__(
        self, background: str | Job | BackgroundJob, policy: Policy, max_slowdown: float | None, seconds: float
    ) -> None:
        """Sets the controls.

        Args:
            background: a model's name, which can be changed, or a job of the user's own, which cannot.
            policy: a name in :data:`deeppool.base.sharing.POLICIES`.
            max_slowdown: bound on the foreground's slowdown, 0.03 for 3 %; None: no bound.
            seconds: duration of the measurement.
        """
        self._own = None if isinstance(background, str) else background
        name, batch = _name_and_batch(background)
        self.background = ipywidgets.Combobox(value=name, options=MODELS, description="Background job", **FIELD)
        self.batch = ipywidgets.BoundedIntText(batch, min=1, max=2**20, description="Its batch (samples)", **FIELD)
        self.policy = ipywidgets.Dropdown(options=list(POLICIES), value=policy, description="Policy", **FIELD)
        self.policy_hint = ipywidgets.HTML()
        self.use_bound = ipywidgets.Checkbox(max_slowdown is not None, description="Hold a bound", **FIELD, indent=True)
        percent = 3.0 if max_slowdown is None else 100 * max_slowdown
        self.bound = ipywidgets.FloatSlider(
            percent,
            min=min(STEP, percent),
            max=max(LOOSEST, percent),
            step=STEP,
            description="Bound (% slower)",
            tooltip="how much slower the foreground may be",
            readout_format=".1f",
            **FIELD,
        )
        self.bound_hint = ipywidgets.HTML()
        self.seconds = ipywidgets.BoundedFloatText(
            seconds, min=1.0, max=86400.0, step=10.0, description="Measure for (s)", **FIELD
        )
        super().__init__(
            [
                self.background,
                self.batch,
                ipywidgets.HBox([self.policy, self.policy_hint]),
                ipywidgets.HBox([self.use_bound, self.bound_hint]),
                self.bound,
                self.seconds,
            ]
        )
        for control in (self.policy, self.use_bound):
            control.observe(lambda _: self.unlock(), "value")
        self.unlock()

    @property
    def max_slowdown(self) -> float:
        """Value of the bound slider as a fraction."""
        return float(self.bound.value) / 100

    def on_bound(self, callback: Callable[[float], None]) -> None:
        """Registers a function that is called with each new bound, as a fraction, while the slider moves."""
        self.bound.observe(lambda _: callback(self.max_slowdown), "value")

    def arguments(self) -> dict[str, Any]:
        """Returns keyword arguments for :func:`deeppool.launch`."""
        seconds = float(self.seconds.value)
        if self.policy.value == "none":
            return {"background": None, "policy": None, "seconds": seconds}
        found: dict[str, Any] = {"background": self._own, "policy": self.policy.value, "seconds": seconds}
        if self._own is None:
            found |= {"background": self.background.value.strip(), "background_batch": int(self.batch.value)}
        return found | ({"max_slowdown": self.max_slowdown} if self.use_bound.value else {})

    def unlock(self) -> None:
        """Enables the controls that apply to the selected policy; used while there is no run."""
        none = self.policy.value == "none"
        for control in (self.background, self.batch):
            control.disabled = none or self._own is not None
        self.policy.disabled = self.seconds.disabled = False
        self.use_bound.disabled = none
        self.bound.disabled = none or not self.use_bound.value
        self.policy_hint.value = _hint(MEANINGS[self.policy.value])
        changeable = self.use_bound.value or refusal(POLICIES[self.policy.value]) is None
        self.bound_hint.value = _hint(
            "Without a background there is no slowdown to bound."
            if none
            else "The bound can be changed during the run."
            if changeable
            else "Without a bound at the start, none can be set during the run."
        )

    def lock(self, why_no_bound: str | None) -> None:
        """Disables all controls except the bound for the duration of a run.

        Args:
            why_no_bound: the reason if the bound cannot be changed either.
        """
        for control in (self.background, self.batch, self.policy, self.use_bound, self.seconds):
            control.disabled = True
        self.bound.disabled = why_no_bound is not None
        self.bound_hint.value = _hint(
            "The bound can be changed now." if why_no_bound is None else f"No bound can be set: {why_no_bound}."
        )


def _name_and_batch(background: str | Job | BackgroundJob) -> tuple[str, int]:
    if isinstance(background, str):
        return background, BATCH
    return (background.model if isinstance(background, Job) else background.name), background.batch


def _hint(text: str) -> str:
    return f'<span style="color: var(--jp-ui-font-color2)">{html.escape(text)}</span>'
