"""Files that only this user may read, and the check of a secret's owner and mode."""

import os
from pathlib import Path

import pytest

from deeppool.base import run_registry
from deeppool.base.private_files import check_private, private
from deeppool.coordinator.ray_connection import token_file
from deeppool.errors import RunError


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return token_file()


def test_a_private_file_is_closed_to_others_whatever_the_umask(open_umask: None, tmp_path: Path) -> None:
    with open(tmp_path / "new", "w", opener=private):
        pass
    assert oct((tmp_path / "new").stat().st_mode & 0o777) == "0o600"


def test_runs_are_registered_beside_the_state_of_a_cluster_that_was_started_first(
    open_umask: None, monkeypatch: pytest.MonkeyPatch, token: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert run_registry.folder() in token.parents


def test_the_token_is_made_once_and_private(open_umask: None, token: Path) -> None:
    assert oct(token.stat().st_mode & 0o777) == "0o600"
    assert len(bytes.fromhex(token.read_text())) == 32
    written = token.read_text()
    assert token_file().read_text() == written
    assert [path.name for path in token.parent.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_token_that_others_may_open_is_refused(token: Path, mode: int) -> None:
    token.chmod(mode)
    with pytest.raises(RunError, match=f"with mode {mode:o}, it must be of user {os.getuid()} with mode 600"):
        token_file()


def test_a_token_in_a_folder_that_others_may_write_is_refused(token: Path) -> None:
    token.parent.chmod(0o777)
    with pytest.raises(RunError, match=r"cluster is of user .* with mode 777"):
        token_file()


def test_a_token_of_another_user_or_behind_a_link_is_refused(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: token.stat().st_uid + 1)
        with pytest.raises(RunError, match=f"is of user {token.stat().st_uid} "):
            check_private(token)
    elsewhere = token.rename(token.with_name("elsewhere"))
    token.symlink_to(elsewhere)
    with pytest.raises(RunError, match="token is a symbolic link"):
        token_file()
