"""Loader workers under a long ``TMPDIR``, in processes of their own: the folder of sockets is that of a process."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from deeppool.processes import worker_sockets
from deeppool.training.data import ShardReader
from tests.ranks import run_ranks


def read_in(rank: int, folders: Sequence[Path], told: Path) -> None:
    """Reads all samples by a loader worker, with a folder for temporary files of this process's own."""
    os.environ["TMPDIR"], tempfile.tempdir = str(folders[rank]), None
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    reader = ShardReader(data, global_batch=4, seed=0, workers=1)
    read = [int(target) for iteration in range(2) for target in reader.shard(iteration, range(4))[1]]
    (told / str(rank)).write_text(str(sorted(read)))


def folder_of(parent: Path, length: int) -> Path:
    """A folder whose path has a length."""
    folder = parent / ("x" * (length - len(str(parent)) - 1))
    folder.mkdir()
    return folder


@pytest.mark.processes
def test_workers_send_batches_whatever_the_length_of_the_folder_for_temporary_files(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """At the longest that fits, at the first that does not on Linux, and well beyond."""
    parent = tmp_path_factory.mktemp("s")
    shortest = max(worker_sockets.LONGEST_FOLDER, len(str(parent)) + 2)
    folders = [folder_of(parent, shortest + beyond) for beyond in (0, 5, 60)]
    run_ranks(read_in, (folders, tmp_path), len(folders))
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["[0, 1, 2, 3, 4, 5, 6, 7]"] * 3


def test_where_no_short_folder_can_be_written_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_sockets, "SHORT_FOLDERS", ())
    monkeypatch.setattr(worker_sockets.tempfile, "tempdir", "/" + "x" * 79)
    with pytest.raises(worker_sockets.RunError, match=r"TMPDIR has 80 bytes, .*TMPDIR to a path of at most 71 bytes"):
        worker_sockets.keep_sockets_short()
    assert worker_sockets.tempfile.tempdir == "/" + "x" * 79
