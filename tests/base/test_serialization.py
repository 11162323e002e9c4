"""Records as files: what is written comes back, whole or not at all, and a wrong file says what is wrong."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import DocumentError
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.profiling.table import Measurement, Profile
from deeppool.records import files
from tests.figures.records import training_of

CLUSTER = Cluster(gpus=4, name="mine", inside=Link(bandwidth=1e9, latency=1e-5, source="made up"))
PROFILE = Profile(
    graph=LayerGraph(
        model="tiny",
        input_shape=(3, 8, 8),
        layers=(
            Layer("conv", ("conv2d", "relu"), (), (), 432, ("conv.weight",), "conv 3→4", 1792, 896),
            Layer("fc", ("linear", "cross_entropy"), (0,), (256,), 2560, ("fc.weight", "fc.bias"), "linear 64→10"),
        ),
        parameter_bytes=2992,
    ),
    batch_sizes=(1, 2, 8),
    measurements=(
        Measurement("conv 3→4", (0.1, 0.15, 0.5), (0.2, 0.3, 1.0), (0.01, 0.01, 0.02)),
        Measurement("linear 64→10", (1e-6, 1e-6, 3e-6), (2e-6, 2.5e-6, 7e-6), (0.0, 0.0, 0.0)),
    ),
    device="cpu",
    device_name="a processor",
    precision="fp32",
    threads=1,
    provenance="estimated",
    method="made up for this test",
    date="2026-11-21",
    versions={"torch": "2.13.0"},
    origin=object(),  # what capture leaves in memory, and no file can hold
)


def changed(document: dict[str, Any], **fields: Any) -> str:
    return json.dumps(document | fields)


@pytest.mark.parametrize(
    "record", [CLUSTER, PROFILE, training_of(losses=(2.5, None, 1.5))], ids=lambda record: record.KIND
)
def test_a_record_comes_back_as_it_was_saved(record: serialization.Record, tmp_path: Path) -> None:
    path = files.save(record, tmp_path / "record.json")
    assert files.load(path) == record
    assert serialization.read(path, type(record)) == record


def test_a_file_names_its_format_and_version_first(tmp_path: Path) -> None:
    path = files.save(PROFILE, tmp_path / "profile.json")
    assert list(json.loads(path.read_text()).items())[:2] == [("format", "deeppool/profile"), ("version", 1)]


def test_what_lives_only_in_memory_stays_out_of_the_file(tmp_path: Path) -> None:
    path = files.save(PROFILE, tmp_path / "profile.json")
    assert "origin" not in json.loads(path.read_text())
    assert files.load(path).origin is None


def test_a_profile_from_before_memory_was_looked_at_says_that_it_is_unknown(tmp_path: Path) -> None:
    document = serialization.to_json(PROFILE)
    for layer in document["graph"]["layers"]:
        del layer["activation_bytes"], layer["autocast_activation_bytes"]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(document))
    assert [layer.activation_bytes for layer in serialization.read(path, Profile).graph.layers] == [None, None]


def test_saving_replaces_an_older_file(tmp_path: Path) -> None:
    path = files.save(PROFILE, tmp_path / "record.json")
    files.save(CLUSTER, path)
    assert files.load(path) == CLUSTER


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_midway_leaves_the_old_file_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files.save(CLUSTER, tmp_path / "record.json")
    before = path.read_bytes()

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, no_space)
    with pytest.raises(DocumentError, match=r"cannot write .*record\.json: No space left on device"):
        files.save(PROFILE, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_could_not_be_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files.save(CLUSTER, tmp_path / "record.json")
    before = path.read_bytes()
    not_read = "cannot write .*record.json, as it could not be read: "
    with pytest.raises(DocumentError, match=rf"{not_read}not JSON at line 5, column \d+: .* hex escape"):
        files.save(replace(CLUSTER, name="\ud800"), path)
    monkeypatch.setattr(serialization, "MAXIMUM_BYTES", len(before) - 1)
    with pytest.raises(DocumentError, match=rf"{not_read}it has {len(before)} B, a record may have ") as caught:
        files.save(CLUSTER, path)
    assert caught.value.record == CLUSTER
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("target", "phrase"),
    [
        (".", "it is a folder"),
        ("absent/record.json", "there is no folder"),
        # Root may write anywhere, but not even root below a file.
        ("file/record.json", "there is no folder"),
        ("x" * 300, "File name too long"),
        ("a\0b", "embedded null"),
        ("\ud800", "'utf-8' codec can't encode character"),
        pytest.param("loop", "Symlink loop", marks=pytest.mark.skipif(sys.version_info >= (3, 13), reason="no error")),
    ],
)
def test_a_path_that_cannot_be_written_is_told_before_the_work(target: str, phrase: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for write in (serialization.check_writable, lambda path: files.save(CLUSTER, path)):
        with pytest.raises(DocumentError, match=f"cannot write .*: {phrase}"):
            write(tmp_path / target)


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        for write in (serialization.check_writable, lambda path: files.save(CLUSTER, path)):
            with pytest.raises(DocumentError, match=rf"cannot write .*{path.name}: not a regular file"):
                write(path)
    assert pipe.is_fifo() and link.is_symlink()


def test_a_record_is_written_where_a_link_leads(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "old.json").write_text("old")
    for name in ("old.json", "new.json"):
        link = tmp_path / f"to-{name}"
        link.symlink_to(there / name)
        assert files.save(CLUSTER, link) == link
        assert link.is_symlink()
        assert files.load(there / name) == CLUSTER
    assert sorted(path.name for path in there.iterdir()) == ["new.json", "old.json"]


def test_numbers_of_numpy_are_those_of_python_in_a_file(tmp_path: Path) -> None:
    link = Link(np.float32(1e9), np.float64(1e-5), np.str_("made up"))
    path = files.save(replace(CLUSTER, inside=link, memory=np.int64(40)), tmp_path / "mine.json")
    assert files.load(path) == replace(CLUSTER, memory=40)
    with pytest.raises(TypeError, match=r"a record holds what JSON has, got <object object .* of type object"):
        serialization.to_json(replace(training_of(), model=object()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_a_read_only_folder_is_told_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DocumentError, match="permission denied"):
        serialization.check_writable(tmp_path / "record.json")


CLUSTER_DOCUMENT = serialization.to_json(CLUSTER)
INSIDE = CLUSTER_DOCUMENT["inside"]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (json.dumps(CLUSTER_DOCUMENT)[:60], "not JSON at line 1, column .*truncated"),
        ("", "not JSON at line 1, column 0: EOF while parsing"),
        ("[1, 2]", "holds a list, expected an object with a 'format' field"),
        ("3", "holds 3, expected an object with a 'format' field"),
        ('{"nbformat": 4}', "field 'format' is None, expected deeppool/ and one of advice, .*, cluster, .*, plan"),
        (changed(CLUSTER_DOCUMENT, format="deeppool/recipe"), "field 'format' is 'deeppool/recipe', expected"),
        (changed(CLUSTER_DOCUMENT, version=2), "field 'version' is 2, this deeppool reads 1"),
        (changed(CLUSTER_DOCUMENT, gpus="many"), "field 'gpus' is 'many': input should be a valid integer"),
        (changed(CLUSTER_DOCUMENT, gpus=0), "gpus must be at least 1, got 0"),
        (changed(CLUSTER_DOCUMENT, inside=INSIDE | {"latency": []}), r"field 'inside\.latency' is \[\]: input should"),
        ('{"format": "deeppool/cluster", "version": 1}', "field 'gpus' is missing"),
    ],
    ids=[
        "truncated",
        "empty",
        "list",
        "number",
        "foreign",
        "kind",
        "version",
        "type",
        "bound",
        "nested type",
        "missing field",
    ],
)
def test_a_wrong_file_says_which_file_what_field_and_its_value(text: str, phrase: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=rf"mine\.json: .*{phrase}") as caught:
        files.load(path)
    assert "\n" not in str(caught.value)


def test_a_long_value_is_cut_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(changed(CLUSTER_DOCUMENT, gpus="9" * 4000 + "?"))
    with pytest.raises(DocumentError, match=r"field 'gpus' is '9+\.\.\.:") as caught:
        files.load(path)
    assert len(str(caught.value)) < 300


def test_a_missing_file_is_told_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"cannot read .*absent\.json: No such file"):
        files.load(tmp_path / "absent.json")


def test_a_folder_and_a_binary_file_cannot_be_read_as_records(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"\x80\x02\xff")
    with pytest.raises(DocumentError, match=r"cannot read .*: Is a directory"):
        files.load(tmp_path)
    with pytest.raises(DocumentError, match=r"cannot read .*weights\.pt: not a text file"):
        files.load(tmp_path / "weights.pt")


def test_reading_one_kind_refuses_another(tmp_path: Path) -> None:
    path = files.save(CLUSTER, tmp_path / "mine.json")
    with pytest.raises(DocumentError, match="field 'format' is 'deeppool/cluster', expected 'deeppool/profile'"):
        serialization.read(path, Profile)
