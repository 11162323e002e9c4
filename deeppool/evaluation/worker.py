"""The process that runs one notebook: a crash of it, or its end by a budget, is the end of nothing else."""

import os
from pathlib import Path

# What runs a notebook and what writes its report; a nursery loads them once for all of them.
import nbconvert  # noqa: F401
import papermill  # noqa: F401

from deeppool.errors import DeeppoolError
from deeppool.evaluation.execution import execute
from deeppool.evaluation.task import Task
from deeppool.processes.fork_server_client import FORKS, fork_own_server
from deeppool.processes.managed_process import CommandChannel


def main() -> None:
    """Runs the notebook that it is told to, answers how that ended, and exits when it is told to."""
    if FORKS:
        from deeppool.evaluation.kernel import FORKED

        # From here, so that they have what this process has.
        fork_own_server()
        os.environ.setdefault(*FORKED)
    commands = CommandChannel()
    while (told := commands.next())["command"] == "run":
        path, folder = Path(told["path"]), Path(told["folder"])
        task = Task(told["name"], path, folder, told["arguments"], told["measures"], told["script"])
        try:
            result = execute(task, Path(told["sockets"]))
        except DeeppoolError as error:
            commands.answer("failed", problem=str(error))
        except Exception as error:
            # Of papermill, jupyter_client or nbconvert; whoever reads the night's page has only this line.
            commands.answer("failed", problem=f"notebook {task.name} could not be run: {type(error).__name__}: {error}")
        else:
            commands.answer("done", result=result.to_json())


if __name__ == "__main__":
    main()
