"""Loader workers under a long ``TMPDIR``, in a process of their own: the folder of sockets is that of a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deeppool.processes import worker_sockets

READ = """
import torch
from torch.utils.data import TensorDataset
from deeppool.training.data import ShardReader
reader = ShardReader(TensorDataset(torch.arange(8.0), torch.arange(8)), global_batch=4, seed=0, workers=1)
print(sorted(int(target) for iteration in range(2) for target in reader.shard(iteration, range(4))[1]))
"""


def read_in(folder: Path, **options: float) -> str:
    return subprocess.run(
        [sys.executable, "-c", READ],
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        **options,
    ).stdout


def folder_of(parent: Path, length: int) -> Path:
    """A folder whose path has a length."""
    folder = parent / ("x" * (length - len(str(parent)) - 1))
    folder.mkdir()
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("beyond", [0, 5, 60])
def test_workers_send_batches_whatever_the_length_of_the_folder_for_temporary_files(
    tmp_path_factory: pytest.TempPathFactory, beyond: int
) -> None:
    """At the longest that fits, at the first that does not on Linux, and well beyond."""
    parent = tmp_path_factory.mktemp("s")
    folder = folder_of(parent, max(worker_sockets.LONGEST_FOLDER, len(str(parent)) + 2) + beyond)
    assert read_in(folder, timeout=60) == "[0, 1, 2, 3, 4, 5, 6, 7]\n"


def test_where_no_short_folder_can_be_written_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sockets, "SHORT_FOLDERS", ())
    monkeypatch.setattr(worker_sockets.tempfile, "tempdir", "/" + "x" * 79)
    with pytest.raises(worker_sockets.RunError, match=r"TMPDIR has 80 bytes, .*TMPDIR to a path of at most 71 bytes"):
        worker_sockets.keep_sockets_short()
    assert worker_sockets.tempfile.tempdir == "/" + "x" * 79
