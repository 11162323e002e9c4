"""Seconds of a schedule on a cluster, from the latency and bandwidth of its links (the alpha-beta model).

A transfer starts when both ends have done their earlier rounds, and takes

    latency + max(bytes that its source sends, bytes that its destination receives) / bandwidth

counting all bytes of the round through the same port: each GPU has a port for its node and one for other nodes, both
in either direction at once. Adding costs nothing. On equal links this is the closed form of every pattern
(:mod:`deeppool.costs.communication`), which prices more GPUs than a schedule can list.

Where transfers of the cluster were measured, their curve replaces the line, and that of exchanges where a rank of the
transfer sends and receives in the round: posting two messages costs more than one, and on a CPU both directions and
adding share a core. Without exchanges, where transfers keep a core busy for a share of their time, as gloo's do, a
round takes a rank at least that share of what it sends and of what it receives.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from deeppool.cluster.cluster import Cluster
from deeppool.cluster.measured_network import Curve
from deeppool.collectives.patterns import ALL_REDUCES, HALVES, LIBRARY, schedule_named
from deeppool.collectives.schedule import Schedule, Transfer
from deeppool.costs.communication import Network
from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class TimedTransfer:
    """A transfer of a schedule, and when it takes place."""

    transfer: Transfer
    round: int
    size: float
    """Bytes."""
    start: float
    """Seconds from the start of the schedule."""
    end: float


Ports = dict[tuple[int, bool], float]
"""Bytes through each rank's port inside its node (True) or to others."""


@lru_cache(maxsize=4096)
def all_reduce_times(cluster: Cluster, ranks: int, size: int) -> Mapping[str, float]:
    """Returns the seconds of every pattern over two or more first GPUs; of the library's own where it was measured.

    Where every schedule was measured over as many GPUs, these are the measured times; else their prices.
    """
    if cluster.measured is not None and (found := cluster.measured.schedule_times(ranks, size)):
        return found
    times = {name: _pattern_time(cluster, name, ranks, size) for name in ALL_REDUCES}
    measured = cluster.measured
    return times if measured is None else times | {LIBRARY: measured.all_reduce_time(ranks, size)}


@lru_cache(maxsize=4096)
def _pattern_time(cluster: Cluster, pattern: str, ranks: int, size: int) -> float:
    return schedule_time(cluster, ALL_REDUCES[pattern](ranks, cluster.gpus_per_node), size)


@lru_cache(maxsize=4096)
def fastest_all_reduce(network: Network, ranks: int, size: int) -> tuple[str, float]:
    """Returns the pattern of an all-reduce over the first GPUs of a network, and its seconds.

    By the model ``measured`` the fastest of all schedules and the library's own, else the model's.
    """
    if network.model == "measured":
        return fastest_of_all(network, ranks, size)
    schedule = network.all_reduce_schedule(ranks, size)
    return LIBRARY if schedule is None else schedule.pattern, network.all_reduce_time(ranks, size)


def fastest_of_all(network: Network, ranks: int, size: int) -> tuple[str, float]:
    """Returns the fastest of all patterns and the library's own, over the first GPUs of a network, and its seconds."""
    times = all_reduce_times(network.cluster, ranks, size)
    if network.model == "nccl":
        times = {**times, LIBRARY: network.all_reduce_time(ranks, size)}
    pattern = min(times, key=times.__getitem__)
    return pattern, times[pattern]


def fastest_in_halves(cluster: Cluster, ranks: int, size: int) -> tuple[str, float]:
    """Returns the fastest pattern that can be sent in halves, over the first GPUs of a cluster, and its seconds."""
    times = all_reduce_times(cluster, ranks, size)
    pattern = min(HALVES, key=times.__getitem__)
    return pattern, times[pattern]


def pattern_prices(network: Network, pattern: str) -> Callable[[int, int], tuple[str, float]]:
    """Returns what prices all-reduces of some ranks and bytes by one pattern, whatever is faster.

    Args:
        network: the library's own all-reduce was measured, or is NCCL's by the model ``nccl``, or is priced as a ring.
        pattern: ``library`` or a name of :data:`deeppool.collectives.patterns.ALL_REDUCES`.
    """

    def price(ranks: int, size: int) -> tuple[str, float]:
        if network.cluster.measured is None:
            if network.model == "nccl" and pattern == LIBRARY:
                return pattern, network.all_reduce_time(ranks, size)
            return pattern, _pattern_time(network.cluster, pattern if pattern in ALL_REDUCES else "ring", ranks, size)
        times = all_reduce_times(network.cluster, ranks, size)
        return pattern, times.get(pattern, times["ring"])

    return price


@lru_cache(maxsize=4096)
def fastest_schedule(network: Network, ranks: int, size: int) -> Schedule | None:
    """Returns the schedule of :func:`fastest_all_reduce`; None: the library's own all-reduce."""
    pattern, _ = fastest_all_reduce(network, ranks, size)
    return schedule_named(pattern, ranks, network.cluster.gpus_per_node)


def schedule_time(cluster: Cluster, schedule: Schedule, size: int) -> float:
    """Returns the seconds of a schedule over the first GPUs of a cluster; see :func:`timed_transfers`."""
    return max((timed.end for timed in timed_transfers(cluster, schedule, size)), default=0.0)


def timed_transfers(cluster: Cluster, schedule: Schedule, size: int) -> tuple[TimedTransfer, ...]:
    """Returns all transfers of a schedule over the first GPUs of a cluster, round by round.

    Args:
        cluster: at least as many GPUs as the schedule has ranks.
        schedule: steps of all ranks.
        size: bytes of the buffer.

    Raises:
        InvalidValueError: the cluster has fewer GPUs.
    """
    if schedule.ranks > cluster.gpus:
        raise InvalidValueError(f"{schedule} needs {schedule.ranks} GPUs, cluster '{cluster.name}' has {cluster.gpus}")
    free = [0.0] * schedule.ranks
    """When each rank has done its earlier rounds."""
    timed: list[TimedTransfer] = []
    for number, transfers in enumerate(schedule.transfers()):
        sizes = _sizes(schedule, transfers, size)
        seconds = _Round(cluster, transfers, sizes).seconds()
        ends = list(free)
        for transfer, bytes_, taken in zip(transfers, sizes, seconds, strict=True):
            start = max(free[transfer.source], free[transfer.destination])
            timed.append(TimedTransfer(transfer, number, bytes_, start, start + taken))
            for rank in (transfer.source, transfer.destination):
                ends[rank] = max(ends[rank], start + taken)
        free = ends
    return tuple(timed)


def core_seconds(cluster: Cluster, schedule: Schedule, size: int) -> float:
    """Returns the seconds for which cores compute for the transfers of a schedule, over all ranks; 0 if not measured.

    It bounds the time where ranks share cores: a cluster has one for each rank.
    """
    return sum(
        sum(_Round(cluster, transfers, _sizes(schedule, transfers, size)).computing.values())
        for transfers in schedule.transfers()
    )


def _sizes(schedule: Schedule, transfers: Sequence[Transfer], size: int) -> list[float]:
    """Returns the bytes of some transfers of a schedule over a buffer."""
    return [size * (transfer.stop - transfer.start) / schedule.chunks for transfer in transfers]


class _Round:
    """The transfers of a round, and what passes through the port of each rank."""

    def __init__(self, cluster: Cluster, transfers: Sequence[Transfer], sizes: Sequence[float]) -> None:
        self._cluster, self._transfers = cluster, transfers
        self._near = [_is_inside(cluster, transfer) for transfer in transfers]
        self._sent: Ports = defaultdict(float)
        self._received: Ports = defaultdict(float)
        for transfer, inside, bytes_ in zip(transfers, self._near, sizes, strict=True):
            self._sent[transfer.source, inside] += bytes_
            self._received[transfer.destination, inside] += bytes_
        self._both = {rank for rank, _ in self._sent} & {rank for rank, _ in self._received}
        self.computing = self._computing()
        """Seconds for which each rank's core computes for its transfers, where that was measured."""

    def _computing(self) -> Mapping[int, float]:
        found: dict[int, float] = defaultdict(float)
        for rank, inside in dict.fromkeys([*self._sent, *self._received]):
            port = [ports[rank, inside] for ports in (self._sent, self._received) if (rank, inside) in ports]
            exchange = _exchange(self._cluster, inside=inside) if len(port) == 2 else None
            curve = exchange or _measured(self._cluster, inside=inside)
            if curve is not None and curve.computing is not None:
                at_once = [max(port)] if exchange is not None else port
                found[rank] += curve.computing_share * sum(map(curve.at, at_once))
        return found

    def seconds(self) -> list[float]:
        """Returns the seconds of each transfer."""
        return [
            max(self._link_time(transfer, inside), *(self.computing.get(rank, 0.0) for rank in _ends(transfer)))
            for transfer, inside in zip(self._transfers, self._near, strict=True)
        ]

    def _link_time(self, transfer: Transfer, inside: bool) -> float:
        """Returns the seconds of the bytes through the busier port: as measured, or by the line of its link."""
        cluster = self._cluster
        size = max(self._sent[transfer.source, inside], self._received[transfer.destination, inside])
        exchange = None if self._both.isdisjoint(_ends(transfer)) else _exchange(cluster, inside=inside)
        curve = exchange or _measured(cluster, inside=inside)
        if curve is not None:
            return curve.at(size)
        link = cluster.inside if inside else cluster.between
        return link.latency + size / link.bandwidth


def _ends(transfer: Transfer) -> tuple[int, int]:
    return transfer.source, transfer.destination


def _is_inside(cluster: Cluster, transfer: Transfer) -> bool:
    """Whether both ranks of a transfer are in one node."""
    return transfer.source // cluster.gpus_per_node == transfer.destination // cluster.gpus_per_node


def _measured(cluster: Cluster, *, inside: bool) -> Curve | None:
    """Returns the measured transfers inside a node or between two, None where there are none."""
    measured = cluster.measured
    return None if measured is None else measured.inside if inside else measured.between


def _exchange(cluster: Cluster, *, inside: bool) -> Curve | None:
    """Returns the measured exchanges inside a node or between two, None where there are none."""
    measured = cluster.measured
    return None if measured is None else measured.exchange_inside if inside else measured.exchange_between
