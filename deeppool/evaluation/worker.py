"""The process that runs one notebook: a crash of it, or its end by a budget, is the end of nothing else."""

from pathlib import Path

from deeppool.child import Commands
from deeppool.errors import DeeppoolError
from deeppool.evaluation.task import Task


def main() -> None:
    """Runs the notebook that it is told to, answers how that ended, and exits when it is told to."""
    commands = Commands()
    while (told := commands.next())["command"] == "run":
        from deeppool.evaluation.execution import execute

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
