"""What an explorer asks of the planner, and what it has been told already."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.table import CostTable
from deeppool.planning.plan import LimitScope, Plan
from deeppool.planning.planner import frontier, plan_from_costs
from deeppool.planning.request import check_limit, cost_table
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.studies.collocation_tradeoff import share
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.profiling.table import Profile
from deeppool.units import format_bit_rate

REMEMBERED = 48
"""Answers of each kind; a frontier of a thousand GPUs holds some thousand plans."""

View = Literal["frontier", "shared"]
"""What a plan is compared with: all efficient plans, or ways to share the cluster with a background job."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Question:
    """What plans are made for; the limit is asked beside it, because prices and frontiers do not depend on it."""

    cluster: Cluster
    global_batch: int

    def __str__(self) -> str:
        gpus = self.cluster.gpus
        return f"batch {self.global_batch:,} on {gpus:,} GPU{'s' * (gpus > 1)} of {self.cluster.name}"


def at_speed(cluster: Cluster, bandwidth: float | None) -> Cluster:
    """The cluster with every link at one speed, full bisection, its latencies kept; None: as it is."""
    if bandwidth is None:
        return cluster
    rate = format_bit_rate(bandwidth)

    def link(old: Link) -> Link:
        return Link(bandwidth, old.latency, f"{rate} each direction, chosen; latency of {cluster.name}")

    return replace(
        cluster,
        name=f"{cluster.name} at {rate}",
        inside=link(cluster.inside),
        between=link(cluster.between),
        measured=None,
    )


class Exploration:
    """Plans, frontiers and shared clusters of one profile, each computed once."""

    def __init__(self, profile: Profile, background: Profile, limit_scope: LimitScope = "layer") -> None:
        """Nothing is known yet.

        Args:
            profile: of the model that is planned.
            background: of the job that shares the cluster with it.
            limit_scope: as for ``dp.plan``.
        """
        self.profile, self.background, self.limit_scope = profile, background, limit_scope
        self._known: dict[str, OrderedDict[Hashable, Any]] = {}

    def prices(self, question: Question) -> CostTable:
        """Milliseconds."""
        return self._remember(
            "prices", question, lambda: cost_table(self.profile, question.cluster, question.global_batch)
        )

    def plan(self, question: Question, limit: float | None, *, explained: bool = False) -> Plan:
        """Milliseconds; with the prices of all other GPU counts, in a deep model, seconds.

        Raises:
            InvalidValueError: a limit below 1.
            PlanError, MissingProfileError: there is no such plan.
        """
        check_limit(limit)

        def search() -> Plan:
            return plan_from_costs(self.profile, self.prices(question), limit, self.limit_scope, explained=explained)

        return self._remember("plan", (question, limit, explained), search)

    def frontier(self, question: Question) -> Frontier:
        """Milliseconds to seconds."""
        return self._remember(
            "frontier", question, lambda: frontier(self.profile, question.cluster, question.global_batch)
        )

    def shared(self, question: Question) -> SharedCluster:
        """A frontier for every smaller GPU count too."""
        return self._remember(
            "shared", question, lambda: share(self.profile, question.cluster, question.global_batch, self.background)
        )

    def compare(self, view: View, question: Question) -> Frontier | SharedCluster:
        """The one or the other."""
        return self.frontier(question) if view == "frontier" else self.shared(question)

    def known(self, view: View, question: Question) -> Frontier | SharedCluster | None:
        """The same, if it has been computed."""
        answers: OrderedDict[Hashable, Any] = self._known.get(view, OrderedDict())
        found: Frontier | SharedCluster | None = answers.get(question)
        return found

    def _remember(self, kind: str, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        # Two threads may compute the same once each; what they find is equal.
        known: OrderedDict[Hashable, Any] = self._known.setdefault(kind, OrderedDict())
        if (found := known.get(key)) is not None:
            answer: Answer = found
            return answer
        answer = compute()
        known[key] = answer
        while len(known) > REMEMBERED:
            known.popitem(last=False)
        return answer
