"""The channel to background jobs in the ranks' own processes: their counterpart to :class:`HelperProcesses`."""

from collections.abc import Mapping
from typing import Any

from deeppool.collocation.helper_processes import START_SECONDS, SWITCH_SECONDS
from deeppool.execution.ranks import Ranks
from deeppool.processes.managed_process import Message

PROGRAM = "deeppool.collocation.collocated_rank"
"""Module that the processes of such ranks run."""


class RankChannel:
    """Reaches background jobs in the processes of the ranks, which answer each command at once."""

    def __init__(self, ranks: Ranks, job_setup: Mapping[str, Any]) -> None:
        """Sends nothing yet.

        Args:
            ranks: they run :data:`PROGRAM`.
            job_setup: result of :func:`deeppool.collocation.job_queue.save_background_job`.
        """
        self._ranks, self._job_setup = ranks, job_setup
        self._answers: Mapping[int, Message] = {}

    def start(self) -> None:
        """Lets each rank, which is ready, create the job."""
        self._answers = self._execute("start", START_SECONDS, **self._job_setup)

    def send(self, command: str, **arguments: Any) -> None:
        """Sends a command, and waits for the answers."""
        self._answers = self._execute(command, SWITCH_SECONDS, **arguments)

    def collect(self, event: str, timeout: float) -> Mapping[int, Message]:
        """Returns the answers to the last command."""
        return self._answers

    def receive(self, timeout: float) -> None:
        """Returns nothing: within a phase the ranks are not asked."""

    def cpu_seconds(self) -> Mapping[int, float]:
        """Returns nothing: a phase is counted in pieces, of which none is cut."""
        return {}

    def _execute(self, command: str, timeout: float, **arguments: Any) -> Mapping[int, Message]:
        when = f"while its background job had to {command}"
        return dict(enumerate(self._ranks.execute(f"{command}_background", timeout, when, **arguments)))
