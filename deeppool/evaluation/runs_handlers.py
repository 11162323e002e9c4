"""The user's runs as a part of JupyterLab's own server, for the list in its sidebar; ``deeppool lab`` loads it.

The requests need the token of the server, as those to its kernels do.
"""

from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from deeppool.base.run_registry import running
from deeppool.errors import RunError
from deeppool.units import format_seconds


class _RunsHandler(APIHandler):
    auth_resource = "contents"

    def found(self) -> tuple[Any, ...]:
        """Returns the live runs."""
        try:
            return running()
        except RunError as error:
            raise web.HTTPError(500, str(error)) from error


class ListHandler(_RunsHandler):
    """Answers with the live runs, oldest first."""

    @web.authenticated
    @authorized
    def get(self) -> None:
        """Answers as JSON."""
        runs = [
            {
                "name": run.name,
                "what": run.what,
                "doing": run.doing,
                "progress": run.progress,
                "where": run.where,
                "folder": run.folder,
                "age": format_seconds(round(run.age)),
            }
            for run in self.found()
        ]
        self.finish({"runs": runs})


class StopHandler(_RunsHandler):
    """Requests the end of a run."""

    @web.authenticated
    @authorized
    def post(self, name: str) -> None:
        """Returns at once; a run that has ended is no error."""
        for run in self.found():
            if run.name == name:
                run.stop()
        self.set_status(204)
        self.finish()


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Adds the requests to the server."""
    base = url_path_join(server.web_app.settings["base_url"], "deeppool", "runs")
    server.web_app.add_handlers(".*$", [(base, ListHandler), (rf"{base}/(\d+-\d+)/stop", StopHandler)])
