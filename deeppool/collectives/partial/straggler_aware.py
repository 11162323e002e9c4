"""One rank of an exact all-reduce whose ranks sum what is there while they wait for the last one.

    arrival ─► (all but one have arrived) ─► the name of the straggler ─► reduce-scatter among the others
            ─► (the straggler arrives) ─► its chunks ─► the sum of every chunk to all ranks

Each of the others owns one of P - 1 chunks. When the straggler arrives, only its own gradient is left to be added, and
every chunk travels once to each rank: 2 / (P - 1) of the elements per connection, against log2(P) whole vectors of
recursive doubling. The idea is that of StragglAR (arXiv 2505.23523), for any number of ranks and a straggler that is
known only when all others have arrived.
"""

from deeppool.collectives.partial.participant import Contribution, PartialMessage, Participant, Vector
from deeppool.collectives.partial.state import RoundSpec


class StragglerAwareParticipant(Participant):
    """The state of one rank; mode ``straggler-aware``."""

    def __init__(self, rank: int, spec: RoundSpec) -> None:
        """Starts with the first round open."""
        chunks = spec.rule.ranks - 1
        self._bounds = [chunk * spec.elements // chunks for chunk in range(chunks + 1)]
        super().__init__(rank, spec)

    def _open(self) -> None:
        super()._open()
        self._named = False
        self._owners: list[int] = []
        """Ranks that own the chunks, in the order of chunks; empty: the straggler is not known yet."""
        self._order: list[int] = []
        """Ranks whose part of this rank's chunk is to be added, in this order: the straggler's last."""
        self._chunk: Contribution | None = None
        self._sums: dict[int, Contribution] = {}
        """Sums of chunks, by owner."""

    def elements_of(self, chunk: int) -> int:
        """Returns the elements of a chunk."""
        return self._bounds[chunk + 1] - self._bounds[chunk]

    def fires_at(self) -> float:
        """Returns infinity: nothing happens without a message or an arrival."""
        return float("inf")

    def advance(self, now: float) -> None:
        """Does all that can be done now."""
        while not self.closed:
            self._name_straggler()
            for straggler in self._heard.pop(self.completed, ()):
                self._owners = [rank for rank in range(self.rule.ranks) if rank != straggler]
                self._order = [rank for rank in (*self._owners, straggler) if rank != self.rank]
            if not (self._arrived and self._owners):
                return
            if not self._active:
                self._activate()
                self._scatter()
            if not self._perform():
                return
            self._complete(now)

    def _arrive(self, now: float) -> None:
        self._arrived, number = True, self.completed
        coordinator = self._coordinator(number)
        if coordinator == self.rank:
            self._arrivals[number][self.rank] = now
        else:
            self.outbox.append((coordinator, PartialMessage("arrival", number)))
        self.advance(now)

    def _complete(self, now: float) -> None:
        super()._complete(now)
        # Others still wait for a rank that has finished: it arrives by itself.
        if self.finished and not (self.closed or self._arrived):
            self._arrive(now)

    def _name_straggler(self) -> None:
        """Names the last rank to all, where this rank is the one that counts arrivals."""
        number, ranks = self.completed, self.rule.ranks
        if self._named or self._coordinator(number) != self.rank or len(self._arrivals[number]) < ranks - 1:
            return
        self._named, arrivals = True, self._arrivals[number]
        late = max(range(ranks), key=lambda rank: arrivals.get(rank, float("inf")))
        self._heard[number].append(late)
        self.outbox += [
            (rank, PartialMessage("activation", number, late)) for rank in range(ranks) if rank != self.rank
        ]

    def _scatter(self) -> None:
        """Sends each owner its chunk of this rank's contribution."""
        for chunk, owner in enumerate(self._owners):
            part = self._part(chunk)
            if owner == self.rank:
                self._chunk = part
            else:
                self.outbox.append((owner, PartialMessage("data", self.completed, chunk, part)))

    def _part(self, chunk: int) -> Contribution:
        held = self._held
        assert held is not None, "an active round has a contribution"
        total = None if held.total is None else held.total[self._bounds[chunk] : self._bounds[chunk + 1]]
        return Contribution(held.counts, held.finished, total)

    def _perform(self) -> bool:
        """Adds what has arrived to this rank's chunk, then collects all chunks; returns whether all are there."""
        data = self._data[self.completed]
        if self._chunk is not None:
            while self._order and data[self._order[0]]:
                self._chunk = self._chunk.plus(data[self._order.pop(0)].popleft())
            if self._order:
                return False
            self._sums[self.rank], chunk = self._chunk, self._owners.index(self.rank)
            message = PartialMessage("data", self.completed, chunk, self._chunk)
            self.outbox += [(rank, message) for rank in range(self.rule.ranks) if rank != self.rank]
            self._chunk = None
        # What an owner sends after its part of this rank's chunk is the sum of its own.
        self._sums |= {
            owner: data[owner].popleft() for owner in self._owners if owner not in self._sums and data[owner]
        }
        if len(self._sums) < len(self._owners):
            return False
        self._held = self._joined([self._sums[owner] for owner in self._owners])
        return True

    def _joined(self, chunks: list[Contribution]) -> Contribution:
        """Returns the whole sum; null where no rank contributed."""
        first = chunks[0]
        if first.total is None:
            return first
        total: Vector = self._empty.copy()
        for start, stop, chunk in zip(self._bounds, self._bounds[1:], chunks, strict=False):
            total[start:stop] = chunk.total
        return Contribution(first.counts, first.finished, total)


def participant_of(rank: int, spec: RoundSpec) -> Participant:
    """Makes the state of one rank, by the mode of its rule; a rank that is alone waits for nobody."""
    aware = spec.rule.mode == "straggler-aware" and spec.rule.ranks > 1
    return (StragglerAwareParticipant if aware else Participant)(rank, spec)
