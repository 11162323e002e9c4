"""Commands that can write their result, and do not write it over a file that they read."""

import os
from collections.abc import Iterable, Iterator, Mapping
from os.path import isfile
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from deeppool.errors import InvalidValueError

WRITTEN = {"output": "-o", "html": "--html", "perfetto": "--perfetto", "model_explorer": "--model-explorer"}
"""Options for files that commands write, by the names of their parameters."""
SAME_KIND = {("replan", "plan_file")}
"""Commands with the parameters whose file the result may replace: it is the next one of its kind."""


class InputKeepingCommand(TyperCommand):
    """A command that refuses to write its result over one of its inputs, or where nothing can be written."""

    def invoke(self, ctx: Any) -> Any:
        """Checks the files, and runs the command.

        Args:
            ctx: typer's context of the call, of a class that it does not export.

        Raises:
            InvalidValueError: an option names one of the inputs as the file to write.
            DocumentError: the file cannot be written.
        """
        from deeppool.base.serialization import check_writable
        from deeppool.processes.torchrun import started_by_torchrun

        # Unlike Path.resolve, this raises nothing for links that lead back to themselves.
        inputs = {os.path.realpath(path) for path in _inputs(ctx.info_name or "", ctx.params)}
        for name, option in WRITTEN.items():
            path = ctx.params.get(name)
            if path is None:
                continue
            for target in _targets(name, Path(path)):
                if os.path.realpath(target) in inputs:
                    beside = "" if target == Path(path) else f", {target}"
                    raise InvalidValueError(
                        f"{option} {path} would replace a file that this command reads{beside} (give {option} another "
                        "file)"
                    )
                # Under torchrun only rank 0 writes, and says so to the others when they have met.
                if not started_by_torchrun():
                    check_writable(target)
        return super().invoke(ctx)


def _targets(name: str, path: Path) -> Iterable[Path]:
    """Returns the files that an option writes."""
    if name != "model_explorer":
        return [path]
    from deeppool.figures.model_explorer import files_at

    return files_at(path)


def _inputs(command: str, parameters: Mapping[str, Any]) -> Iterator[Path]:
    """Yields the files among the values of a command's parameters.

    A text without an ending is the name of a model, a GPU or a policy, of which a result may have been called.
    """
    for name, value in parameters.items():
        if name in WRITTEN or (command, name) in SAME_KIND:
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            named = isinstance(each, str) and (Path(each).suffix != "" or name in ("profile_file", "compare"))
            if (named or isinstance(each, Path)) and isfile(each):
                yield Path(each)
