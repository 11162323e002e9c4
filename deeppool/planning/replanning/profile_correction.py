"""Corrects a profile by the times that a run measured.

DeepPool's runtime measures its layers too, so that the planner can be fed with them; there the loop is closed by
hand (section 3). A run here measures *stages*, consecutive layers on the same GPUs, so something must be assumed:

- The layers of a stage share its ratio, measured over profiled, forward and backward apart. A direction that
  takes no time in the profile cannot be scaled: its measured time is counted with the other one.
- At other per-GPU batches of the profile a layer keeps its ratio. Where equal layers ran at several batches the
  ratio is interpolated between them.
- Layers of equal signature compute the same, and share one measurement: it gets the mean of their ratios.
- Only computing is corrected; transfers and all-reduces keep the costs of the cluster's links. What all-reduces beside
  a stage's backward add to it, as the plan predicts that, is not computing; nor are copies of gradients into buckets.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from deeppool.base.number_checks import real_number
from deeppool.costs.communication import Network
from deeppool.costs.table import copies
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.schedule import layers_in_order, order_of
from deeppool.planning.plan import Plan
from deeppool.profiling.table import Measurement, Profile
from deeppool.records.run_record import RunRecord
from deeppool.records.training_record import TrainingRecord
from deeppool.units import format_count

NOISE = 0.03
"""Relative noise: rounds of one unchanged foreground differ by up to 2.5 % (benchmarks/collocation-ladder)."""

MeasuredTimes = RunRecord | TrainingRecord | Mapping[str, tuple[float, float]]
"""Record of a run or training of the plan; or forward and backward seconds by layer, at the plan's per-GPU batches."""


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Measured seconds of a stage or layer in one iteration, on the slowest of its GPUs."""

    layers: tuple[int, ...]
    batch: int
    """Samples per GPU."""
    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Correction:
    """A stage or layer whose measured time differs from the profile's by more than noise."""

    layers: tuple[str, ...]
    batch: int
    """Samples per GPU at which they ran."""
    profiled: float
    """Seconds of forward and backward."""
    measured: float
    forward_ratio: float
    """Measured seconds of the forward over profiled ones."""
    backward_ratio: float

    def __post_init__(self) -> None:
        if not self.layers:
            raise InvalidValueError("a correction is of some layers, got none")

    @property
    def name(self) -> str:
        """``first … last`` layer."""
        first, last = self.layers[0], self.layers[-1]
        return first if first == last else f"{first} … {last}"

    def __str__(self) -> str:
        return (
            f"{self.name} at batch {self.batch} forward x{self.forward_ratio:.3g}, backward x{self.backward_ratio:.3g}"
        )


@dataclass(frozen=True)
class CorrectedProfile:
    """A profile corrected by a run."""

    profile: Profile
    """Corrected profile; its ``method`` names the corrections and the run."""
    corrections: tuple[Correction, ...]
    layers: tuple[int, ...]
    """Layers whose times changed: those that were corrected, and those of equal signature."""


def correct_profile(profile: Profile, plan: Plan, live: MeasuredTimes, *, noise: float = NOISE) -> CorrectedProfile:
    """Returns the profile with the times of a run of a plan.

    Args:
        profile: profile of the plan's graph and device; the one that the plan was made of, or an earlier one.
        plan: plan that ran.
        live: measured times; layers that it does not name keep the profile's.
        noise: relative difference below which measured times do not change the profile's.

    Raises:
        PlanError: profile, plan and run do not match, or the run did not measure the plan's GPUs.
        InvalidValueError: an unknown layer, or an invalid time.
    """
    check_profile_matches(plan, profile)
    noise = real_number("noise", noise)
    if not 0 <= noise < math.inf:
        raise InvalidValueError(f"noise must be at least 0, got {noise:g}")
    corrections = []
    ratios: dict[str, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for time in _layer_times(plan, live) if isinstance(live, Mapping) else _stage_times(plan, profile, live):
        found = _compare(profile, time)
        pair = (1.0, 1.0)
        if abs(found.measured - found.profiled) > noise * found.profiled:
            corrections.append(found)
            pair = (found.forward_ratio, found.backward_ratio)
        for layer in time.layers:
            ratios[profile.graph.layers[layer].signature][time.batch].append(pair)
    if not corrections:
        return CorrectedProfile(profile, (), ())
    scaled = {
        x.signature: _scale(x, profile.batch_sizes, ratios[x.signature])
        for x in profile.measurements
        if any(pair != (1.0, 1.0) for pairs in ratios[x.signature].values() for pair in pairs)
    }
    measurements = tuple(scaled.get(x.signature, x) for x in profile.measurements)
    method = f"{profile.method}; corrected by {describe_source(live)}: {'; '.join(map(str, corrections))}"
    return CorrectedProfile(
        replace(profile, measurements=measurements, method=method, checks=()),
        tuple(corrections),
        tuple(index for index, layer in enumerate(profile.graph.layers) if layer.signature in scaled),
    )


def describe_source(live: MeasuredTimes) -> str:
    """Returns the source of measured times in words."""
    if isinstance(live, Mapping):
        return f"measured times of {format_count(len(live), 'layer')}"
    if isinstance(live, TrainingRecord):
        return f"a training of {live.date} on {live.ranks} ranks of {live.device_name}"
    beside = "alone" if live.background is None else f"beside {live.background.model} at {live.background.priority}"
    return f"a run of {live.date} on {live.ranks} ranks of {live.device_name}, {beside}"


def check_profile_matches(plan: Plan, profile: Profile) -> None:
    """Raises if a profile cannot be the one of a plan.

    Raises:
        PlanError: another graph, device or precision.
    """
    fingerprint = profile.graph.fingerprint
    places = [(x.device_name, x.precision) for x in (plan, profile)]
    if plan.graph_fingerprint != fingerprint or places[0] != places[1]:
        raise PlanError(
            f"the profile is of {profile.graph.model} ({fingerprint}) on {profile.device_name} in "
            f"{profile.precision}, the plan of {plan.model} ({plan.graph_fingerprint}) on {plan.device_name} in "
            f"{plan.precision} (give the profile that the plan was made of)"
        )


def _stage_times(plan: Plan, profile: Profile, run: RunRecord | TrainingRecord) -> list[MeasuredTime]:
    """Returns the measured times of the stages of a run, matched with the layers of its plan."""
    if (run.model, run.global_batch, run.ranks) != (plan.model, plan.global_batch, plan.gpus):
        raise PlanError(
            f"the run is of {run.model}, batch {run.global_batch} on {run.ranks} ranks, the plan of {plan.model}, "
            f"batch {plan.global_batch} on {plan.gpus} GPUs (give the plan that was run)"
        )
    if isinstance(run, RunRecord) and run.emulated_rank is not None:
        raise PlanError(
            f"the run emulated rank {run.emulated_rank} of {run.ranks}, so it measured that rank's layers alone "
            "(run the plan on all ranks)"
        )
    if run.cores < run.ranks:
        raise PlanError(
            f"the run's {run.ranks} ranks shared {run.cores} cores, so its times are not those of {run.ranks} GPUs "
            f"(run on a machine with {run.ranks} cores, or plan for {run.cores})"
        )
    remaining = list(layers_in_order(order_of(plan.tree, plan.gpu_sets)))
    found = []
    for stage in run.stages:
        layers = tuple(index for index in remaining if plan.layers[index].gpus == stage.gpus)[: stage.layers]
        names = [plan.layers[index].name for index in layers]
        if len(names) != stage.layers or not (stage.name.startswith(names[0]) and stage.name.endswith(names[-1])):
            raise PlanError(
                f"the run has a stage '{stage.name}' of {stage.layers} layers on GPUs {list(stage.gpus)}, the plan "
                "has not (give the plan that was run)"
            )
        remaining = [index for index in remaining if index not in layers]
        _check_times(f"stage '{stage.name}'", stage.forward, stage.backward)
        backward = stage.backward / _slowdown(plan, profile, layers)
        found.append(MeasuredTime(layers, -(-plan.global_batch // len(stage.gpus)), stage.forward, backward))
    if remaining:
        raise PlanError(
            f"the run measured {len(plan.layers) - len(remaining)} of the plan's {len(plan.layers)} layers, not "
            f"'{plan.layers[remaining[0]].name}' (give the plan that was run)"
        )
    return found


def _slowdown(plan: Plan, profile: Profile, layers: tuple[int, ...]) -> float:
    """Returns the factor by which the plan's all-reduces and copies lengthen the backward of some layers."""
    times, alone = plan.schedule, sum(plan.layers[layer].backward for layer in layers)
    if plan.overlap_sync:
        copied = copies(Network(plan.cluster, plan.network_model), profile.graph.gradient_bytes, plan.buckets)
        alone -= sum(float(copied[layer]) for layer in layers if plan.layers[layer].gpu_count > 1)
    return sum(times.computed[layer] - times.backward[layer] for layer in layers) / alone if alone > 0 else 1.0


def _layer_times(plan: Plan, live: Mapping[str, tuple[float, float]]) -> list[MeasuredTime]:
    """Returns the measured times by layer name."""
    places = {layer.name: index for index, layer in enumerate(plan.layers)}
    found = []
    for name, times in live.items():
        if len(times) != 2:
            raise InvalidValueError(f"layer '{name}' has {len(times)} measured times, expected forward and backward")
        forward, backward = (real_number(f"times of layer '{name}'", seconds) for seconds in times)
        if name not in places:
            raise InvalidValueError(
                f"no layer '{name}' in the plan of {plan.model}: it has {len(places)}, the first is "
                f"'{plan.layers[0].name}' (names are those of plan.layers)"
            )
        _check_times(f"layer '{name}'", forward, backward)
        count = plan.layers[places[name]].gpu_count
        found.append(MeasuredTime((places[name],), -(-plan.global_batch // count), forward, backward))
    return found


def _check_times(what: str, forward: float, backward: float) -> None:
    if not (0 <= forward < math.inf and 0 <= backward < math.inf and forward + backward > 0):
        raise InvalidValueError(
            f"{what} has measured times of {forward:g} s forward and {backward:g} s backward "
            "(both at least 0, and one of them more)"
        )


def _compare(profile: Profile, live: MeasuredTime) -> Correction:
    times = [profile.time(layer, live.batch) for layer in live.layers]
    forward, backward = sum(time.forward for time in times), sum(time.backward for time in times)
    measured = live.forward + live.backward
    if forward and backward:
        ratios = live.forward / forward, live.backward / backward
    else:
        ratios = (measured / forward, 1.0) if forward else (1.0, measured / backward)
    names = tuple(profile.graph.layers[layer].name for layer in live.layers)
    return Correction(names, live.batch, forward + backward, measured, *ratios)


def _scale(
    times: Measurement, batch_sizes: tuple[int, ...], ratios: Mapping[int, list[tuple[float, float]]]
) -> Measurement:
    """Scales a measurement by ratios at the per-GPU batches that ran; constant beyond them."""
    ran = sorted(ratios)
    forward, backward = (
        np.interp(batch_sizes, ran, [sum(pair[way] for pair in ratios[b]) / len(ratios[b]) for b in ran])
        for way in (0, 1)
    )
    return replace(
        times,
        forward=tuple(float(ratio * time) for ratio, time in zip(forward, times.forward, strict=True)),
        backward=tuple(float(ratio * time) for ratio, time in zip(backward, times.backward, strict=True)),
    )
