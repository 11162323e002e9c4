"""What a notebook's output folder tells a verdict: numbers of its records, times of the layers that it measured."""

import statistics
from collections import defaultdict
from pathlib import Path

from deeppool.base import serialization
from deeppool.errors import DocumentError
from deeppool.evaluation.findings import RECORD
from deeppool.evaluation.nightly_record import Observation
from deeppool.evaluation.record import Basis, Check, Evaluation
from deeppool.profiling.table import Profile
from deeppool.records.run_record import RunRecord


def observe(folder: Path) -> tuple[tuple[Observation, ...], tuple[Check, ...]]:
    """Numbers and checks of all records right in the folder; other files are the notebook's own business.

    Raises:
        DocumentError: a record is not what it should be.
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
                # A notebook has one evaluation; another file of this kind is an input of its.
                if path.name == RECORD:
                    found += of_evaluation(evaluation)
                    checks = evaluation.checks
            case "deeppool/profile":
                found += of_profile(serialization.from_json(document, Profile, path), path.stem)
            case "deeppool/run":
                found += of_run(serialization.from_json(document, RunRecord, path), path.stem)
    return tuple(found), checks


def of_evaluation(evaluation: Evaluation) -> list[Observation]:
    """Its numbers."""
    return [
        Observation(number.name, number.value, number.unit, number.basis, number.spread or 0.0)
        for number in evaluation.numbers
    ]


def of_profile(profile: Profile, name: str) -> list[Observation]:
    """Of a measured profile every distinct layer: at every batch size, and as their geometric mean; and the sums.

    A layer that is slower everywhere stands out of less noise in the mean than at any one batch size.
    """
    if profile.provenance != "measured":
        return []
    alike: dict[str, list[int]] = defaultdict(list)
    for index, layer in enumerate(profile.graph.layers):
        alike[layer.signature].append(index)
    group = f"{name}: {profile.graph.model}"
    found = []
    for places in alike.values():
        layer_name = profile.graph.layers[places[0]].name
        told = f"{group}: layer {layer_name}" + (f" and {len(places) - 1} like it" if len(places) > 1 else "")
        times = [profile.time(places[0], batch) for batch in profile.batch_sizes]
        for batch, time in zip(profile.batch_sizes, times, strict=True):
            found.append(
                Observation(f"{told} at batch {batch}", time.total, "s", "measured", time.spread * time.total, group)
            )
        mean = statistics.geometric_mean(time.total for time in times)
        spread = statistics.fmean(time.spread for time in times)
        found.append(Observation(f"{told}, mean over batches", mean, "s", "measured", spread * mean, f"{group}, means"))
    for batch in profile.batch_sizes:
        # Of the whole iteration, beside which the layers were measured.
        spread = next((check.spread for check in profile.checks if check.batch == batch), 0.0)
        total = profile.iteration_time(batch)
        found.append(Observation(f"{group}: all layers at batch {batch}", total, "s", "measured", spread * total))
    return found


def of_run(run: RunRecord, name: str) -> list[Observation]:
    """The foreground alone and beside the background, and what the background got."""
    basis: Basis = "measured" if run.emulated_rank is None else "emulated"
    front = run.foreground
    found = [
        Observation(f"{name}: iteration alone, median", front.alone.iteration_time.p50, "s", basis),
        Observation(f"{name}: slowdown beside the background", 100 * front.slowdown, "%", basis),
    ]
    if run.background is not None:
        found.append(Observation(f"{name}: harvest of the background", 100 * run.background.harvest, "%", basis))
    return found
