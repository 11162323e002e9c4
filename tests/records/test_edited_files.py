"""Files that were edited or broken: loading one, or giving it to a command, works or ends in one line that says why."""

import json
import os
import random
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deeppool.base import serialization
from deeppool.cli.app import app
from deeppool.errors import DeeppoolError, DocumentError
from deeppool.figures.record_view import record_view
from deeppool.records import files
from tests.sampling import STRESS

RECORDED = Path(__file__).parent / "recorded"
KINDS = sorted(path.stem for path in RECORDED.glob("*.json") if path.stem in files.KINDS)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 2**31, 2**63, 10**30, 1e18, 1e29, 1e300, -0.5, 1e-300),
    *("", "x", "\udc80", [], [0], [[]], [None], [-1], [10**6], ["x"], {}, {"a": 1}),
)
FILE = "FILE"
COMMANDS = {
    "plan": [
        f"explain {FILE}",
        f"explain {FILE} --json",
        f"simulate {FILE}",
        f"simulate {FILE} --background profile.json --interference interference.json",
        f"diff {FILE} plan.json",
        f"replan {FILE} profile.json run.json",
    ],
    "profile": [f"plan {FILE} --gpus 2 --global-batch 8", f"frontier {FILE} --gpus 2 --global-batch 8"],
    "cluster": [f"plan profile.json --gpus 2 --global-batch 8 --cluster {FILE}"],
    "run": [f"simulate plan.json --against {FILE}"],
    "interference": [f"simulate plan.json --background profile.json --interference {FILE}"],
    "workload-trace": [f"cluster simulate {FILE} --gpus 2"],
    "steps-table": [f"scaling profile.json --gpus 4 --steps-to-accuracy {FILE}"],
    "critical-batch": [f"scaling profile.json --gpus 4 --steps-to-accuracy {FILE}"],
}


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a document is."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*above, key))


def edited(document: dict[str, Any], draw: random.Random) -> str:
    """One to two values deleted, repeated, scaled or replaced."""
    document = json.loads(json.dumps(document))
    for _ in range(draw.choice((1, 1, 2))):
        found = [place for place in places(document) if place[0] not in ("format", "version")]
        if not found:  # its only field was deleted
            break
        *above, last = draw.choice(found)
        holder: Any = document
        for key in above:
            holder = holder[key]
        kind = draw.random()
        if kind < 0.15:
            del holder[last]
        elif kind < 0.25 and isinstance(holder, list):
            holder.insert(last, holder[last])
        elif kind < 0.3 and isinstance(holder[last], float):
            holder[last] *= draw.choice((-1, 2, 1e6))
        else:
            # Of a list or an object a copy: a later edit may change it.
            holder[last] = deepcopy(draw.choice(VALUES))
    return json.dumps(document)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_file_loads_or_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    document = json.loads((RECORDED / f"{kind}.json").read_text())
    draw, path = random.Random(kind), tmp_path / "edited.json"
    refused = 0
    for _ in range(250 if STRESS else 40):
        path.write_text(edited(document, draw))
        try:
            record = files.load(path)
            assert files.text_of(record)
            record_view(record)
        except DocumentError as error:
            assert str(error).startswith(f"{path}: ")
            assert "\n" not in str(error)
            refused += 1
    # Most of the values are of another type than the field's.
    assert refused > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_command_on_an_edited_file_works_or_ends_in_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in RECORDED.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    document, draw = json.loads((RECORDED / f"{kind}.json").read_text()), random.Random(f"command {kind}")
    for number in range(12):
        Path("edited.json").write_text(edited(document, draw))
        command = COMMANDS[kind][number % len(COMMANDS[kind])].replace(FILE, "edited.json")
        done = CliRunner().invoke(app, command.split())
        if done.exit_code:
            assert isinstance(done.exception, DeeppoolError), (command, Path("edited.json").read_text())
            assert "\n" not in str(done.exception)
        else:
            assert " inf" not in done.stdout
            assert " nan" not in done.stdout


def with_value(text: str) -> bytes:
    """A plan whose iteration time is written as this."""
    plan = json.loads((RECORDED / "plan.json").read_text())
    return json.dumps(plan | {"iteration_time": "HERE"}).replace('"HERE"', text).encode()


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (with_value("1e400"), r"field 'iteration_time' is inf: numbers must be within ±1e\+30 \(edited\?"),
        (with_value("-1e31"), "field 'iteration_time' is -1e[+]31: numbers must be"),
        (with_value("NaN"), "not JSON at line 1, column .*: expected value"),
        (with_value("9" * 5000), "not JSON at line 1, column .*: number out of range"),
        (with_value("9" * 30), "field 'iteration_time' is 9{30}: numbers must be"),
        (with_value("[" * 300 + "]" * 300), "not JSON at line 1, column .*: recursion limit exceeded"),
        (with_value(r'"\ud800"'), "not JSON at line 1, column .*: .* hex escape"),
        (with_value(r'"\udc80"'), "not JSON at line 1, column .*: lone .* surrogate"),
        (with_value(r'{"a\udc80": 1}'), "not JSON at line 1, column .*: lone .* surrogate"),
        (with_value("1.0"), "iteration_time is 1, the layers sum up to .* to .* .make the plan again"),
    ],
)
def test_what_is_no_value_of_a_record_is_refused(content: bytes, phrase: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(DocumentError, match=rf"plan\.json: {phrase}"):
        files.load(tmp_path / "plan.json")


def test_a_fifo_and_a_device_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(DocumentError, match=f"cannot read {path}: not a regular file"):
            files.load(path)


def test_a_file_larger_than_any_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (RECORDED / "plan.json").read_bytes()
    (tmp_path / "plan.json").write_bytes(content)
    monkeypatch.setattr(serialization, "MAXIMUM_BYTES", len(content))
    files.load(tmp_path / "plan.json")
    monkeypatch.setattr(serialization, "MAXIMUM_BYTES", len(content) - 1)
    with pytest.raises(DocumentError, match=r"cannot read .*plan\.json: it has more than 5\.3 KiB"):
        files.load(tmp_path / "plan.json")


def test_a_graph_of_20000_layers_is_refused_at_once(tmp_path: Path) -> None:
    document = json.loads((RECORDED / "profile.json").read_text())
    first, second = document["graph"]["layers"][:2]
    document["graph"]["layers"] = [first, *(second | {"predecessors": [i]} for i in range(19_999))]
    (tmp_path / "profile.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match="field 'graph': layers must be 1 to 10000, got 20000"):
        files.load(tmp_path / "profile.json")


@pytest.mark.parametrize(
    ("predecessors", "input_bytes"), [([2], [8192]), ([-1], [8192]), ([10**6], [8192]), ([0], []), ([0, 0], [8192])]
)
def test_predecessors_that_are_no_earlier_layers_are_refused(
    predecessors: list[int], input_bytes: list[int], tmp_path: Path
) -> None:
    document = json.loads((RECORDED / "profile.json").read_text())
    document["graph"]["layers"][2] |= {"predecessors": predecessors, "input_bytes": input_bytes}
    (tmp_path / "profile.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=r"field 'graph': layer 'right', number 2, has predecessors .*, expected"):
        files.load(tmp_path / "profile.json")


@pytest.mark.parametrize(
    ("kind", "place", "value", "phrase"),
    [
        ("price-list", ("iteration_time",), 0, "iteration_time must be positive, got 0"),
        ("price-list", ("layers",), [], "layers must be at least 1, got 0"),
        ("profile", ("device",), "x", "device must be one of cpu, cuda, emulated, .*, got 'x'"),
        ("replan", ("before", "layers"), [], "a plan needs layers, a global batch"),
        ("replan", ("after", "iteration_time"), 1e9, "iteration_time is 1e[+]09, the layers sum up to"),
        ("advice", ("plan", "iteration_time"), 1e9, "iteration_time is 1e[+]09, the layers sum up to"),
        ("run", ("foreground", "slowdown"), -1, "slowdown must be above -1, an iteration without time, got -1"),
        *(
            ("shared-cluster", ("data_parallel_partitions", 1, name), 0, "speedup and throughput must be positive, got")
            for name in ("iteration_time", "speedup", "throughput")
        ),
        ("training", ("metrics",), [], "metrics are of at least 1 update, got none"),
        ("run", ("foreground", "alone", "idle_share"), [], "idle_share must be of at least 1 rank, got none"),
        ("run", ("stages", 0, "layers"), 0, "stage '.*' must have at least 1 layer, got 0"),
        ("run", ("emulated_rank",), -1, "emulated_rank must be 0 to [0-9], got -1"),
        ("run", ("emulated_rank",), 2**31, "emulated_rank must be 0 to [0-9], got 2147483648"),
        *(
            ("plan", ("gpu_counts",), value, "gpu_counts ascending from 1 to at most 1048576, got 5 layers, 8 and")
            for value in ([], [2], [1, 1], [1, 4, 2], [0, 1], [1, 2**20 + 1])
        ),
        ("plan", ("cluster", "gpus"), 1, "needs a cluster with as many, got 1"),
        ("plan", ("gpu_counts",), [1, 2, 2**20], "gpu_counts up to 1048576 needs a cluster with as many"),
        ("plan", ("background",), {"model": "x", "sample_time": 0}, "sample_time must be positive and finite, got 0"),
        ("crossover-comparison", ("jobs",), [], "jobs must compute for some time, got 0 jobs that do not"),
        *(
            (kind, (name,), value, f"{name} must be positive and finite, got {value}")
            for kind, name, value in (
                ("frontier", "single_gpu_iteration_time", 0),
                ("frontier", "data_parallel_iteration_time", 0),
                ("plan", "data_parallel_iteration_time", -1),
            )
        ),
        *(
            (kind, ("data_parallel_on_fewer",), [{"gpus": gpus, "seconds": seconds}], f"DDP takes .* on {gpus} GPU")
            for kind in ("frontier", "plan")
            for gpus, seconds in ((0, 1), (1, 0))
        ),
        ("measured-transfers", ("compute",), [], "iterations that send nothing, and methods .*, got 0 and"),
        ("measured-transfers", ("methods",), [], "measured ways are at least one, got none"),
        ("measured-transfers", ("methods", 0, "transfers_alone"), 0, "methods whose transfers take some time, got"),
        ("measured-transfers", ("repetitions",), 3, "needs as many rounds of positive times from each of 3"),
        ("measured-ways", ("ways", 0, "samples"), 0, r"each way trains on samples, got \[0, "),
        ("measured-ways", ("ways",), [], "measured ways are at least one, got none"),
    ],
)
def test_values_that_nothing_can_show_are_refused(
    kind: str, place: tuple[Any, ...], value: object, phrase: str, tmp_path: Path
) -> None:
    document = json.loads((RECORDED / f"{kind}.json").read_text())
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    (tmp_path / "edited.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=phrase):
        files.load(tmp_path / "edited.json")


TOO_LONG = "x" * 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "phrase"),
    [
        (f"plan {TOO_LONG} --gpus 2 --global-batch 8", "no profile 'x+': neither a file nor one of"),
        (f"advise {TOO_LONG} --gpus 2 --global-batch 8", "unknown model 'x+': known are"),
        (f"run {TOO_LONG}", "unknown model 'x+': known are"),
        (f"estimate squeezenet1_1 --gpu {TOO_LONG} -o made.json", "no data sheet of the GPU 'x+' is known"),
        ("cluster simulate edited.json --gpus 2", "no profile 'x+': neither a file nor one of"),
    ],
)
def test_a_text_that_is_too_long_for_a_file_is_the_name_of_nothing(
    command: str, phrase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads((RECORDED / "workload-trace.json").read_text())
    for job in document["jobs"]:
        job["source"] = TOO_LONG
    Path("edited.json").write_text(json.dumps(document))
    done = CliRunner().invoke(app, command.split())
    assert isinstance(done.exception, DeeppoolError)
    assert re.match(phrase, str(done.exception))


def test_a_layer_that_no_other_reads_is_refused_unless_it_is_the_last(tmp_path: Path) -> None:
    document = json.loads((RECORDED / "profile.json").read_text())
    layers = document["graph"]["layers"]
    layers.insert(3, layers[2] | {"name": "read by none"})
    for layer in layers[4:]:
        layer["predecessors"] = [source + (source > 2) for source in layer["predecessors"]]
    (tmp_path / "profile.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=r"no layer reads read by none, but the last one ends every path"):
        files.load(tmp_path / "profile.json")


@pytest.mark.parametrize("gpus", [0, 2**20 + 1, 10**18, 1e18])
def test_gpus_are_bounded(gpus: float, tmp_path: Path) -> None:
    document = json.loads((RECORDED / "cluster.json").read_text()) | {"gpus": gpus}
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError, match=rf"cluster\.json: gpus must be at (least 1|most 1048576), got {gpus:.0f}"):
        files.load(tmp_path / "cluster.json")
