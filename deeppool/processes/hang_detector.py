"""Detects which of several ranks hangs when none makes progress: not those that wait for it.

Pure: messages and the time are arguments, the result is an error.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from deeppool.errors import RankFailedError
from deeppool.processes.managed_process import Message

SILENT_SECONDS = 30.0
"""Seconds without a heartbeat after which a rank counts as stopped even if the others make progress."""
LATE_SECONDS = 5.0
"""Seconds without a heartbeat after which a rank is reported as hung once no rank makes progress."""

MOST_NAMED = 2
"""Ranks that a line of progress names."""


@dataclass(slots=True)
class RankStatus:
    """Last messages of one rank."""

    name: str
    heartbeat: Message | None = None
    """Last heartbeat (:class:`deeppool.processes.heartbeat.Heartbeat`), corrected by the report of a later update; or
    None before the first, while it imports."""
    time: float = 0.0
    """Arrival time of the heartbeat, on the detector's clock."""
    failure: Message | None = None
    """Failure report (:mod:`deeppool.execution.failure_report`), or None."""

    @property
    def what(self) -> str:
        """Last known activity."""
        return str(self.heartbeat["what"]) if self.heartbeat else "its start"

    @property
    def waits(self) -> bool:
        """Whether the rank reported that it waits for other ranks."""
        return self.heartbeat is not None and bool(self.heartbeat["waits"])


@dataclass(slots=True)
class HangDetector:
    """Detector of hung ranks in a run. Its clock counts the seconds in which messages were read."""

    ranks: dict[str, RankStatus] = field(default_factory=dict)
    clock: float = 0.0
    progress: float = 0.0
    """Time of the last progress of any rank, on the detector's clock."""

    def record(self, name: str, message: Message) -> None:
        """Records a message of a rank; a heartbeat is progress only if its activity is new."""
        rank = self.ranks[name]
        if message["event"] == "heartbeat":
            if rank.heartbeat is None or rank.heartbeat["since"] != message["since"]:
                self.progress = self.clock
            rank.heartbeat, rank.time = message, self.clock
            return
        self.progress = self.clock
        if message["event"] == "failed":
            rank.failure = message
        elif message["event"] == "step" and rank.heartbeat is not None:
            # A heartbeat may be as old as many short updates.
            what = f"training, after update {message['step']}"
            rank.heartbeat = {**rank.heartbeat, "what": what, "waits": False, "at": None}

    def describe_missing(self, finished: Collection[str]) -> str:
        """Returns which ranks have not completed the command, and what they do; not those that wait for others.

        Args:
            finished: names of ranks that completed it.
        """
        missing = [rank for rank in self.ranks.values() if rank.name not in finished]
        missing = [rank for rank in missing if not rank.waits] or missing
        more = len(missing) - MOST_NAMED
        named = [f"{rank.name} ({rank.what})" for rank in missing[:MOST_NAMED]]
        return ", ".join(named) + (f", and {more} more" if more > 0 else "")

    def hung(
        self, timeout: float, rendezvous_timeout: float, finished: Collection[str], when: str
    ) -> RankFailedError | None:
        """Returns the error of ranks that make no progress; None before their timeout.

        Args:
            timeout: seconds without progress of any rank.
            rendezvous_timeout: the same while each of them waits for the others.
            finished: names of ranks that completed the command.
            when: what the command was, for the message.
        """
        stalled = self.clock - self.progress
        busy = [rank for rank in self.ranks.values() if rank.name not in finished]
        silent = any(self._silence(rank) > SILENT_SECONDS for rank in busy)
        if not silent and stalled <= (rendezvous_timeout if all(rank.waits for rank in busy) else timeout):
            return None
        late = [rank for rank in busy if self._silence(rank) > LATE_SECONDS]
        hung = late or [rank for rank in busy if not rank.waits]
        others = [f"{rank.name} in {rank.what}" for rank in busy if rank not in hung]
        waiting = f", waited for by {' and '.join(others)}" if others else ""
        if hung:
            descriptions = " and ".join(map(self._describe, hung))
            text = f"{descriptions}{waiting} {when}; all ranks were stopped (look there, or run again)"
            error = RankFailedError(text)
            # Of several, none is known to be the cause.
            error.rank = list(self.ranks).index(hung[0].name) if len(hung) == 1 else None
            return error
        return RankFailedError(
            f"no rank made progress for {stalled:.0f} s {when}, each waits for another: {' and '.join(others)}; "
            "all ranks were stopped (is the network between them up?)"
        )

    def _describe(self, rank: RankStatus) -> str:
        silence = self._silence(rank)
        if rank.heartbeat is None:
            return f"{rank.name} sent nothing for {self.clock - self.progress:.0f} s"
        if silence > LATE_SECONDS:
            return (
                f"{rank.name} hangs: no heartbeat for {silence:.0f} s (was the process stopped?), the "
                f"last in {rank.what}"
            )
        at = f", at {rank.heartbeat['at']}" if rank.heartbeat["at"] else ""
        return f"{rank.name} hangs: it has been in {rank.what} for {rank.heartbeat['seconds']:.0f} s{at}"

    def _silence(self, rank: RankStatus) -> float:
        return 0.0 if rank.heartbeat is None else self.clock - rank.time
