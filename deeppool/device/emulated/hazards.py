"""Detection of hazards: two streams access a storage, one of them writes, and nothing orders the two accesses.

Each operator increments its stream's component of a vector clock. An event carries the clock of the stream that
recorded it to the streams that wait for it, and to the host, once that has seen it passed; what is launched later
comes after what the host has seen. An access is ordered after an earlier one if the clock of its stream contains it.
So a hazard is found in every run, whether or not the threads happened to run in the right order.
(Lamport, "Time, Clocks, and the Ordering of Events in a Distributed System", CACM 1978; Fidge 1988)
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping

from deeppool.device.emulated.memory import Access, PendingTransfer, Region
from deeppool.errors import RunError

Clock = dict[int, int]
"""Stream → number of its operators that come before."""


class HazardError(RunError):
    """Two operators on different streams access the same memory without an order."""


class HazardDetector:
    """Vector clocks of the streams and of the host."""

    def __init__(self) -> None:
        """Knows no stream yet."""
        self._lock = threading.Lock()
        self._clocks: dict[int, Clock] = defaultdict(dict)
        self._host: Clock = {}

    def launch(self, stream: int, operator: str, reads: Iterable[Region], writes: Iterable[Region]) -> None:
        """Records an operator of a stream.

        Raises:
            HazardError: one of its accesses has no order with an earlier one.
        """
        with self._lock:
            clock = self._clocks[stream]
            _merge(clock, self._host)
            access = Access(stream, clock.get(stream, 0) + 1, operator)
            reads, writes = list(reads), list(writes)
            for region in reads:
                _check_transfers(region, access, writes=False)
                _check(region.block.writer, clock, access, "written", "reads")
            for region in writes:
                _check_transfers(region, access, writes=True)
                _check(region.block.writer, clock, access, "written", "writes")
                for reader in region.block.readers.values():
                    _check(reader, clock, access, "read", "writes")
            clock[stream] = access.tick
            for region in reads:
                region.block.readers[stream] = access
            for region in writes:
                region.block.writer = access
                region.block.readers.clear()

    def record(self, stream: int) -> Clock:
        """Returns the clock of an event recorded on a stream now."""
        with self._lock:
            _merge(self._clocks[stream], self._host)
            return dict(self._clocks[stream])

    def wait(self, stream: int, event: Mapping[int, int]) -> None:
        """Orders later operators of a stream after an event."""
        with self._lock:
            _merge(self._clocks[stream], event)

    def seen(self, event: Mapping[int, int]) -> None:
        """Orders what is launched from now on after an event that the host has seen passed."""
        with self._lock:
            _merge(self._host, event)

    def begin_transfer(self, region: Region, *, writes: bool) -> PendingTransfer:
        """Marks memory as read, or written, by a communication."""
        with self._lock:
            transfer = PendingTransfer(region.start, region.stop, writes)
            region.block.transfers.append(transfer)
            return transfer

    def end_transfer(self, region: Region, transfer: PendingTransfer) -> None:
        """Marks a communication as complete."""
        with self._lock:
            region.block.transfers.remove(transfer)

    def check_host(self, writer: Access, what: str) -> None:
        """Checks that the host has waited for a copy to its memory before it reads it.

        Raises:
            HazardError: it has not.
        """
        with self._lock:
            if self._host.get(writer.stream, 0) < writer.tick:
                raise HazardError(
                    f"{what} on the host reads memory that {writer.operator} on stream {writer.stream} has not "
                    "certainly written (synchronize the stream, or wait for an event after the copy, before reading it)"
                )

    def last(self, stream: int, operator: str) -> Access:
        """Returns the last operator of a stream as an access."""
        with self._lock:
            return Access(stream, self._clocks[stream].get(stream, 0), operator)


def _check(earlier: Access | None, clock: Clock, later: Access, did: str, does: str) -> None:
    if earlier is None or earlier.stream == later.stream or clock.get(earlier.stream, 0) >= earlier.tick:
        return
    raise HazardError(
        f"{later.operator} on stream {later.stream} {does} memory that was {did} by {earlier.operator} on stream "
        f"{earlier.stream}, and no event orders the two (let stream {later.stream} wait for an event recorded after "
        f"{earlier.operator}, or synchronize before)"
    )


def _check_transfers(region: Region, later: Access, *, writes: bool) -> None:
    for transfer in region.block.transfers:
        overlaps = region.start < transfer.stop and transfer.start < region.stop
        if overlaps and (writes or transfer.writes):
            raise HazardError(
                f"{later.operator} on stream {later.stream} {'writes' if writes else 'reads'} memory that a "
                f"communication {'receives' if transfer.writes else 'sends'}, and nobody has waited for it (call wait "
                "of its work before)"
            )


def _merge(clock: Clock, other: Mapping[int, int]) -> None:
    for stream, tick in other.items():
        if tick > clock.get(stream, 0):
            clock[stream] = tick
