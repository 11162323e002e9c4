"""What JupyterLab is started with by ``deeppool lab``."""

import importlib
import os
from pathlib import Path
from typing import Any

import jupyterlab
import pytest
from jupyter_server.services.config import ConfigManager
from jupyterlab_server.config import get_federated_extensions, get_static_page_config
from jupyterlab_server.settings_utils import _get_overrides, get_settings

import deeppool as dp
from deeppool.evaluation import notebooks

SCHEMAS = Path(jupyterlab.__file__).parent / "schemas"
EXTENSION = "@jupyterlab/apputils-extension"


def test_buttons_use_the_kernels_main_thread_and_nobody_asks_for_news_or_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/the/users/own")
    monkeypatch.setattr(os, "execve", lambda path, command, environment: started.update(environment))
    notebooks.start_lab(tmp_path)
    path = started["JUPYTER_CONFIG_PATH"]
    assert path.endswith(os.pathsep + "/the/users/own")

    # As the server reads it.
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", path)
    overrides, error = _get_overrides(str(tmp_path))
    assert not error

    def default(part: str, name: str) -> Any:
        schema = f"{EXTENSION}:{part}"
        found, _ = get_settings(str(tmp_path), str(SCHEMAS), str(tmp_path), schema, overrides=overrides)
        return found["schema"]["properties"][name]["default"]

    assert default("kernels-settings", "commsOverSubshells") == "disabled"
    assert default("notification", "fetchNews") == "false"
    assert default("notification", "checkForUpdates") is False
    page = get_static_page_config()
    assert (page["buildAvailable"], page["buildCheck"]) == (False, False)


def test_the_sidebar_and_the_requests_that_it_makes_are_found_by_jupyterlab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, Any] = {}
    monkeypatch.setattr(os, "execve", lambda path, command, environment: started.update(command=command, **environment))
    notebooks.start_lab(tmp_path)
    option = "--LabApp.extra_labextensions_path="
    (folder,) = [word.removeprefix(option) for word in started["command"] if word.startswith(option)]
    found = get_federated_extensions([folder])["deeppool"]
    assert found["version"] == dp.__version__
    assert Path(found["ext_path"], found["jupyterlab"]["_build"]["load"]).is_file()
    manager = ConfigManager(read_config_path=started["JUPYTER_CONFIG_PATH"].split(os.pathsep))
    (module,) = manager.get("jupyter_server_config")["ServerApp"]["jpserver_extensions"]
    assert hasattr(importlib.import_module(module), "_load_jupyter_server_extension")
