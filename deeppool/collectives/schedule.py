"""Collectives as data: the steps of each rank, and what each step waits for.

    transfers in rounds ──► Schedule(steps) ──► priced (costs), performed (perform), drawn (figures), checked (simulate)

A buffer is divided into equal chunks. A pattern lists transfers in rounds; a round's sends read what earlier rounds
left. :func:`schedule_of` makes two steps of each transfer, and finds what each waits for from the chunks that a rank
reads and writes: a step waits only for the rank's earlier steps that it would otherwise overtake. No step waits for
another rank other than by its message, and messages of a pair of ranks arrive in the order in which they are sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from deeppool.errors import InvalidValueError

StepKind = Literal["send", "receive", "reduce"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Chunks ``start`` to ``stop`` go from one rank to another."""

    source: int
    destination: int
    start: int
    stop: int
    reduces: bool = False
    """Whether the receiver adds the chunks to its own; else they replace them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One side of a transfer: ``reduce`` receives chunks and adds them to the rank's own."""

    kind: StepKind
    rank: int
    peer: int
    start: int
    stop: int
    round: int
    """Round of the transfer, the same on both sides; a rank that meets its rounds in order never deadlocks."""
    after: tuple[int, ...]
    """Positions in the schedule of this rank's steps that must be complete before this one reads or writes chunks."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A collective of some ranks over a buffer of equal chunks."""

    KIND: ClassVar[str] = "schedule"

    pattern: str
    ranks: int
    chunks: int
    steps: tuple[Step, ...] = field(repr=False)
    """In the order of rounds; a rank posts its steps to one peer in this order."""

    def __str__(self) -> str:
        sends = sum(step.kind == "send" for step in self.steps)
        return f"{self.pattern} of {self.ranks} ranks: {sends} transfers in {self.rounds} rounds, {self.chunks} chunks"

    def __hash__(self) -> int:
        # Schedules are keys of caches, and hashing every step would cost more than what is cached.
        return hash((self.pattern, self.ranks, self.chunks, len(self.steps)))

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return 1 + max((step.round for step in self.steps), default=-1)

    def transfers(self) -> list[list[Transfer]]:
        """Returns the transfers of every round."""
        found: list[list[Transfer]] = [[] for _ in range(self.rounds)]
        for step in self.steps:
            if step.kind != "send":
                found[step.round].append(Transfer(step.peer, step.rank, step.start, step.stop, step.kind == "reduce"))
        return found


def schedule_of(pattern: str, ranks: int, chunks: int, rounds: Sequence[Sequence[Transfer]]) -> Schedule:
    """Makes a schedule of transfers in rounds.

    Args:
        pattern: name of the pattern.
        ranks: number of ranks.
        chunks: parts of the buffer.
        rounds: transfers of each round, of which all sends read what the earlier rounds left.

    Raises:
        InvalidValueError: a transfer names a rank or chunk that does not exist, or two write a chunk at once.
    """
    steps: list[Step] = []
    state = [[_ChunkUse() for _ in range(chunks)] for _ in range(ranks)]
    for number, transfers in enumerate(rounds):
        for transfer in transfers:
            _check(transfer, ranks, chunks)
            for use in (uses := state[transfer.source][transfer.start : transfer.stop]):
                use.readers.append(len(steps))
            after = {writer for use in uses for writer in use.writers}
            steps.append(_step("send", transfer, number, after))
        for transfer in transfers:
            kind: StepKind = "reduce" if transfer.reduces else "receive"
            uses = state[transfer.destination][transfer.start : transfer.stop]
            after = {index for use in uses for index in use.write(len(steps), number, kind)}
            steps.append(_step(kind, transfer, number, after))
    return Schedule(pattern, ranks, chunks, tuple(steps))


@dataclass(slots=True)
class _ChunkUse:
    """Steps of one rank that a later step on the same chunk must wait for."""

    writers: list[int] = field(default_factory=list)
    """The last receive, or the reduces of the last round that had any: their order is free."""
    readers: list[int] = field(default_factory=list)
    """Sends since."""
    round: int = -1
    """Round of the writers."""
    kind: StepKind = "receive"
    before: list[int] = field(default_factory=list)
    """What each of the writers waited for."""

    def write(self, step: int, number: int, kind: StepKind) -> list[int]:
        """Records a write; returns the steps that it waits for."""
        if number == self.round:
            if "receive" in (kind, self.kind):
                raise InvalidValueError(
                    f"two transfers of round {number} write one chunk of a rank, and not both add to it "
                    "(put them into two rounds)"
                )
            self.writers.append(step)
            return self.before
        self.before = [*self.writers, *self.readers]
        self.writers, self.readers, self.round, self.kind = [step], [], number, kind
        return self.before


def _step(kind: StepKind, transfer: Transfer, number: int, after: set[int]) -> Step:
    rank, peer = transfer.source, transfer.destination
    if kind != "send":
        rank, peer = peer, rank
    return Step(kind, rank, peer, transfer.start, transfer.stop, number, tuple(sorted(after)))


def _check(transfer: Transfer, ranks: int, chunks: int) -> None:
    ends = (transfer.source, transfer.destination)
    if not all(0 <= rank < ranks for rank in ends) or ends[0] == ends[1]:
        raise InvalidValueError(f"a transfer joins two of ranks 0 to {ranks - 1}, got {ends[0]} to {ends[1]}")
    if not 0 <= transfer.start < transfer.stop <= chunks:
        raise InvalidValueError(
            f"a transfer holds some of chunks 0 to {chunks - 1}, got {transfer.start} to {transfer.stop - 1}"
        )
