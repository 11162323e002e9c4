"""The JupyterLab of ``deeppool lab``, on the user's own copies of the notebooks."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tests.browser.server import OPTIONS, SETTINGS, Server


class LabCommand(Server):
    """The product's server, on the copies in ``work``; its token is its own."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "deeppool.cli", "lab", str(self.root), "--no-browser", "--port", str(self.port)]

    def configuration(self) -> Mapping[str, Mapping[str, Any]]:
        return OPTIONS

    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        return SETTINGS

    def page_configuration(self) -> Mapping[str, Any]:
        return {}

    def ready(self) -> bool:
        for told in (self.folder / "jupyter").glob("jpserver-*.json"):
            if not (text := told.read_text()).endswith("}"):  # it is being written
                return False
            self.token = json.loads(text)["token"]
            return super().ready()
        return False
