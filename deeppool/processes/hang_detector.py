"""Which of several ranks hangs, when all stand still: not those that wait for it.

Pure: it is told what was heard and how much time passed, and answers in a sentence.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from deeppool.processes.managed_process import Message

MUTE_SECONDS = 30.0
"""Without a sign of life, from a rank that gave them every second: it is stopped, whatever the others do."""
LATE_SECONDS = 5.0
"""Without a sign of life: among ranks that stand still, this one is to blame."""


@dataclass(slots=True)
class RankStatus:
    """What was last heard of one rank."""

    name: str
    pulse: Message | None = None
    """See :class:`deeppool.processes.heartbeat.Heartbeat`; None before the first, while it imports what it needs."""
    time: float = 0.0
    """Of the pulse, on the vigil's clock."""
    failure: Message | None = None
    """See :mod:`deeppool.execution.failure_report`."""

    @property
    def what(self) -> str:
        """It did."""
        return str(self.pulse["what"]) if self.pulse else "its start"

    @property
    def waits(self) -> bool:
        """For other ranks, as far as it is known."""
        return self.pulse is not None and bool(self.pulse["waits"])


@dataclass(slots=True)
class HangDetector:
    """Listens to the ranks of a run. Its clock counts the seconds in which somebody listened."""

    ranks: dict[str, RankStatus] = field(default_factory=dict)
    clock: float = 0.0
    progress: float = 0.0
    """When a rank last got on."""

    def hear(self, name: str, message: Message) -> None:
        """A rank said something; a pulse is progress only where it tells of something new."""
        rank = self.ranks[name]
        if message["event"] == "pulse":
            if rank.pulse is None or rank.pulse["since"] != message["since"]:
                self.progress = self.clock
            rank.pulse, rank.time = message, self.clock
            return
        self.progress = self.clock
        if message["event"] == "failed":
            rank.failure = message

    def hung(self, patience: float, meeting: float, finished: Collection[str], when: str) -> str | None:
        """What is wrong with ranks that stand still; None while there is hope.

        Args:
            patience: seconds without progress of any rank.
            meeting: the same where each of them waits for the others.
            finished: names of ranks that did what they were told.
            when: what that was.
        """
        still = self.clock - self.progress
        busy = [rank for rank in self.ranks.values() if rank.name not in finished]
        mute = any(self._silence(rank) > MUTE_SECONDS for rank in busy)
        if not mute and still <= (meeting if all(rank.waits for rank in busy) else patience):
            return None
        late = [rank for rank in busy if self._silence(rank) > LATE_SECONDS]
        culprits = late or [rank for rank in busy if not rank.waits]
        others = [f"{rank.name} in {rank.what}" for rank in busy if rank not in culprits]
        waiting = f", waited for by {' and '.join(others)}" if others else ""
        if culprits:
            told = " and ".join(map(self._hang, culprits))
            return f"{told}{waiting} {when}; all ranks were stopped (look there, or run again)"
        return (
            f"no rank got on for {still:.0f} s {when}, each waits for another: {' and '.join(others)}; all ranks were "
            "stopped (is the network between them up?)"
        )

    def _hang(self, rank: RankStatus) -> str:
        silence = self._silence(rank)
        if rank.pulse is None:
            return f"{rank.name} said nothing for {self.clock - self.progress:.0f} s"
        if silence > LATE_SECONDS:
            return (
                f"{rank.name} hangs: it has given no sign of life for {silence:.0f} s (was the process stopped?), the "
                f"last in {rank.what}"
            )
        at = f", at {rank.pulse['at']}" if rank.pulse["at"] else ""
        return f"{rank.name} hangs: it has been in {rank.what} for {rank.pulse['seconds']:.0f} s{at}"

    def _silence(self, rank: RankStatus) -> float:
        return 0.0 if rank.pulse is None else self.clock - rank.time
