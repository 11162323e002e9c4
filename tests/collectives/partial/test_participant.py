"""Participants whose messages take random times, against what the gradients themselves say."""

import heapq
import itertools
import random
from collections import defaultdict

import numpy as np
import pytest

from deeppool.collectives.partial.activation import Activation
from deeppool.collectives.partial.firing import FiringRule, Mode
from deeppool.collectives.partial.participant import Participant
from deeppool.collectives.partial.rounds import RoundResult
from deeppool.collectives.partial.state import Delivery, RoundSpec
from deeppool.collectives.partial.straggler_aware import participant_of

RANKS = [*range(2, 10), 16, 32]


class Network:
    """Delivers messages in the order of each pair of ranks, after random times; drives the ranks' training."""

    def __init__(self, rule: FiringRule, delivery: Delivery, steps: int, seed: int, spread: float = 10.0) -> None:
        self.rule, self.steps, self.draw = rule, steps, random.Random(seed)
        spec = RoundSpec(rule, rule.ranks * steps, "int64", delivery)
        self.spread, self.now, self.order = spread, 0.0, itertools.count()
        self.ranks = [participant_of(rank, spec) for rank in range(rule.ranks)]
        self.received: list[list[RoundResult]] = [[] for _ in self.ranks]
        self.events: list = []
        self.last: dict[tuple[int, int], float] = defaultdict(float)
        self.step = [0] * rule.ranks
        self.waiting = [False] * rule.ranks
        self.full_rounds = -1
        for rank in range(rule.ranks):
            self.train(rank)
        self.run()

    def at(self, time: float, call) -> None:
        heapq.heappush(self.events, (time, next(self.order), call))

    def train(self, rank: int) -> None:
        delay = self.draw.choice([1.0, 1.0, self.draw.uniform(0, self.spread)])
        self.at(self.now + delay, lambda: self.submit(rank))

    def submit(self, rank: int) -> None:
        if self.step[rank] == self.steps:
            self.full_rounds = self.ranks[rank].completed if self.full_rounds < 0 else self.full_rounds
            self.ranks[rank].finish(self.now)
        else:
            gradient = np.zeros(self.rule.ranks * self.steps, np.int64)
            gradient[rank * self.steps + self.step[rank]] = 1
            self.step[rank] += 1
            self.waiting[rank] = True
            self.ranks[rank].submit(gradient, self.now)

    def run(self) -> None:
        while True:
            for rank, participant in enumerate(self.ranks):
                self.send(rank)
                if participant.unread and (self.waiting[rank] or participant.finished):
                    self.received[rank] += participant.results()
                    if self.waiting[rank]:
                        self.waiting[rank] = False
                        self.train(rank)
                if self.now < (at := participant.fires_at()) < np.inf:
                    self.at(at, lambda who=participant: who.advance(self.now))
            if not self.events:
                break
            self.now, _, call = heapq.heappop(self.events)
            call()
        assert all(participant.closed for participant in self.ranks), "deadlock"

    def send(self, rank: int) -> None:
        for destination, message in self.ranks[rank].outbox:
            arrival = max(self.now + self.draw.expovariate(20.0), self.last[rank, destination])
            self.last[rank, destination] = arrival
            self.at(arrival, lambda d=destination, m=message: self.ranks[d].receive(rank, m, self.now))
        self.ranks[rank].outbox.clear()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("mode", ["solo", "majority", "quorum", "full", "straggler-aware"])
def test_no_gradient_is_lost_or_counted_twice_however_messages_are_delayed(mode: Mode, ranks: int) -> None:
    steps = 12 if ranks < 16 else 4
    for seed in range(2):
        quorum = -(-ranks // 2) if mode == "quorum" else None
        rule = FiringRule(ranks, mode, quorum, 0.3 * seed, seed, 3 + seed, 6 if seed else None)
        network = Network(rule, "log", steps, seed)
        for received in network.received:
            assert [result.number for result in received] == list(range(len(received)))
            total = sum(result.total for result in received)
            assert np.array_equal(total, np.ones_like(total))
            for result, first in zip(received, network.received[0], strict=True):
                assert np.array_equal(result.total, first.total)
                assert result.counts == tuple(result.total.reshape(ranks, steps).sum(axis=1))
        check_quorum(network, network.received[0][: network.full_rounds])


def check_quorum(network: Network, results: list[RoundResult]) -> None:
    rule = network.rule
    absent = np.zeros(rule.ranks, int)
    for result in results:
        least = {"solo": 1, "majority": 1, "quorum": rule.quorum}.get(rule.mode, rule.ranks)
        assert np.count_nonzero(result.counts) >= least
        if rule.mode == "majority":
            assert result.counts[rule.initiator(result.number)]
        absent = np.where(np.array(result.counts) > 0, 0, absent + 1)
        assert absent.max() <= rule.staleness_limit


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", RANKS)
def test_many_rounds_of_delayed_messages_lose_nothing(ranks: int) -> None:
    rounds = seed = 0
    while rounds < 5_000:
        seed += 1
        mode: Mode = ("solo", "majority", "quorum", "straggler-aware")[seed % 4]
        quorum = 1 + seed % ranks if mode == "quorum" else None
        rule = FiringRule(ranks, mode, quorum, (seed % 2) * 0.3, seed, 1 + seed % 32)
        network = Network(rule, "log", 60, seed, 30.0)
        total = sum(result.total for result in network.received[0])
        assert np.array_equal(total, np.ones_like(total))
        rounds += len(network.received[0])


@pytest.mark.parametrize("ranks", [1, *RANKS, 33])
def test_an_activation_reaches_every_rank_and_uses_each_link_once_whoever_starts(ranks: int) -> None:
    draw = random.Random(ranks)
    for starters in ([0], [ranks - 1], [0, ranks // 2], list(range(ranks))):
        activations = [Activation(rank, ranks) for rank in range(ranks)]
        reached, sent = set(starters), []
        waiting = [(d, on) for rank in starters for d, on in activations[rank].start()]
        while waiting:
            destination, dimension = waiting.pop(draw.randrange(len(waiting)))
            sent.append((destination, dimension))
            reached.add(destination)
            waiting += activations[destination].hear(dimension)
        assert reached == set(range(ranks))
        assert len(sent) == len(set(sent)) <= ranks * (ranks - 1).bit_length()
        if len(starters) == 1:
            assert len(sent) < 2 ** (ranks - 1).bit_length()


def test_messages_of_the_next_round_wait_for_this_one() -> None:
    fast, late, twin = (Participant(rank, RoundSpec(FiringRule(2), 1, "int64", "log")) for rank in (0, 1, 1))
    messages = []
    for number in range(2):
        fast.submit(np.full(1, 1 + number), 0.0)
        messages.append([message for _, message in fast.outbox])
        fast.outbox.clear()
        for message in messages[number]:
            twin.receive(0, message, 0.0)
        for _, message in twin.outbox:
            fast.receive(1, message, 0.0)
        twin.outbox.clear()
        fast.results()
    for message in messages[1]:
        late.receive(0, message, 0.0)
    assert late.completed == 0
    for message in messages[0]:
        late.receive(0, message, 0.0)
    assert [(result.number, result.total.tolist()) for result in late.unread] == [(0, [1]), (1, [2])]


def test_after_the_straggler_arrives_each_chunk_travels_once_to_each_rank() -> None:
    ranks, elements = 5, 8
    spec = RoundSpec(FiringRule(ranks, "straggler-aware"), elements, "int64", "log")
    participants = [participant_of(rank, spec) for rank in range(ranks)]
    sent: list[tuple[int, int]] = []

    def deliver() -> None:
        while any(each.outbox for each in participants):
            for rank, each in enumerate(participants):
                for destination, message in [each.outbox.pop(0) for _ in range(len(each.outbox))]:
                    if message.kind == "data":
                        sent.append((rank, len(message.contribution.total)))
                    participants[destination].receive(rank, message, 0.0)

    for rank in (0, 1, 3, 4):
        participants[rank].submit(np.full(elements, 10**rank), 0.0)
    deliver()
    # The others have exchanged all their chunks: each sent one to each of three.
    assert sent == [(rank, 2) for rank in (0, 1, 3, 4) for _ in range(3)]
    sent.clear()
    participants[2].submit(np.full(elements, 100), 0.0)
    deliver()
    assert sorted(sent) == [(rank, 2) for rank in range(ranks) for _ in range(4)]
    for each in participants:
        [result] = each.results()
        assert (result.counts, result.total.tolist()) == ((1,) * ranks, [11111] * elements)
