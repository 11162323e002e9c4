"""Numbers in a notebook's output folder: those of its records, and the layer times of measured profiles."""

import statistics
from collections import defaultdict
from pathlib import Path

from deeppool.base import serialization
from deeppool.errors import DocumentError
from deeppool.evaluation.entries import Basis, Check
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.nightly_record import Observation
from deeppool.evaluation.record import Evaluation
from deeppool.profiling.table import Profile
from deeppool.records.run_record import RunRecord


def observe(folder: Path) -> tuple[tuple[Observation, ...], tuple[Check, ...]]:
    """Returns the numbers and checks of all records directly in the folder; other files are skipped.

    Raises:
        DocumentError: a record is invalid.
    """
    found: list[Observation] = []
    checks: tuple[Check, ...] = ()
    for path in sorted(folder.glob("*.json")):
        try:
            document = serialization.read_object(path)
        except DocumentError:
            if path.name == RECORD:
                raise
            continue
        match document.get("format"):
            case "deeppool/evaluation":
                evaluation = serialization.from_json(document, Evaluation, path)
                # A notebook has one evaluation; another file of this kind is its input.
                if path.name == RECORD:
                    found += of_evaluation(evaluation)
                    checks = evaluation.checks
            case "deeppool/profile":
                found += of_profile(serialization.from_json(document, Profile, path), path.stem)
            case "deeppool/run":
                found += of_run(serialization.from_json(document, RunRecord, path), path.stem)
    return tuple(found), checks


def of_evaluation(evaluation: Evaluation) -> list[Observation]:
    """Returns the observations of an evaluation: its numbers."""
    return [
        Observation(number.name, number.value, number.unit, number.basis, number.spread or 0.0)
        for number in evaluation.numbers
    ]


def of_profile(profile: Profile, name: str) -> list[Observation]:
    """Returns the observations of a measured profile: every distinct layer at every batch size, its mean, and the sums.

    The mean has less noise than a single batch size, so a layer that is slower at all of them is found more surely.
    """
    if profile.provenance != "measured":
        return []
    identical: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(profile.graph.layers):
        identical[layer.signature].append(index)
    group = f"{name}: {profile.graph.model}"
    found = []
    for indices in identical.values():
        layer_name = profile.graph.layers[indices[0]].name
        label = f"{group}: layer {layer_name}" + (f" and {len(indices) - 1} like it" if len(indices) > 1 else "")
        times = [profile.time(indices[0], batch) for batch in profile.batch_sizes]
        for batch, time in zip(profile.batch_sizes, times, strict=True):
            found.append(
                Observation(f"{label} at batch {batch}", time.total, "s", "measured", time.spread * time.total, group)
            )
        mean = statistics.geometric_mean(time.total for time in times)
        spread = statistics.fmean(time.spread for time in times)
        found.append(
            Observation(f"{label}, mean over batches", mean, "s", "measured", spread * mean, f"{group}, means")
        )
    for batch in profile.batch_sizes:
        # Spread of the whole iteration, which is measured beside the layers.
        spread = next((check.spread for check in profile.checks if check.batch == batch), 0.0)
        total = profile.iteration_time(batch)
        found.append(Observation(f"{group}: all layers at batch {batch}", total, "s", "measured", spread * total))
    return found


def of_run(run: RunRecord, name: str) -> list[Observation]:
    """Returns the observations of a run: iteration time alone, slowdown, and the background's harvest."""
    basis: Basis = "measured" if run.emulated_rank is None else "emulated"
    foreground = run.foreground
    found = [
        Observation(f"{name}: iteration alone, median", foreground.alone.iteration_time.p50, "s", basis),
        Observation(f"{name}: slowdown beside the background", 100 * foreground.slowdown, "%", basis),
    ]
    if run.background is not None:
        found.append(Observation(f"{name}: harvest of the background", 100 * run.background.harvest, "%", basis))
    return found
