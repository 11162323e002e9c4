"""Cached plans, frontiers and shared clusters of one profile."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from deeppool.cluster.cluster import Cluster, Link
from deeppool.costs.table import CostTable
from deeppool.planning.plan import LimitScope, Plan
from deeppool.planning.planner import frontier, plan_from_costs
from deeppool.planning.quick_plan import quick_plan
from deeppool.planning.request import check_limit, cost_table
from deeppool.planning.search.frontier import Frontier
from deeppool.planning.search.optimality import certificate, optimality_factor
from deeppool.planning.search.overlap import NEAR
from deeppool.planning.studies.collocation_tradeoff import share
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.profiling.table import Profile
from deeppool.units import format_bit_rate

CACHE_SIZE = 48
"""Maximum cached results of each kind; a frontier for a thousand GPUs holds about a thousand plans."""

View = Literal["frontier", "shared"]
"""Comparison of a plan with all efficient plans, or with ways to share the cluster with a background job."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """The cluster and batch to plan for; costs and frontiers are cached by it, as they do not depend on the limit."""

    cluster: Cluster
    global_batch: int

    def __str__(self) -> str:
        gpus = self.cluster.gpus
        return f"batch {self.global_batch:,} on {gpus:,} GPU{'s' * (gpus > 1)} of {self.cluster.name}"


def at_speed(cluster: Cluster, bandwidth: float | None) -> Cluster:
    """Returns the cluster with all links at one bandwidth, full bisection and its own latencies; None: unchanged."""
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


class PlanCache:
    """Plans, frontiers and shared clusters of one profile, each computed once."""

    def __init__(self, profile: Profile, background: Profile, limit_scope: LimitScope = "layer") -> None:
        """Starts with an empty cache.

        Args:
            profile: profile of the planned model.
            background: profile of the job that shares the cluster.
            limit_scope: as for ``dp.plan``.
        """
        self.profile, self.background, self.limit_scope = profile, background, limit_scope
        self._cache: defaultdict[str, OrderedDict[Any, Any]] = defaultdict(OrderedDict)

    def costs(self, query: PlanQuery) -> CostTable:
        """Returns the cost table of a query; takes milliseconds."""
        return self._compute_once("costs", query, lambda: cost_table(self.profile, query.cluster, query.global_batch))

    def plan(self, query: PlanQuery, limit: float | None) -> Plan:
        """Returns the plan for a query; takes milliseconds, or seconds for a model with many branches.

        Raises:
            InvalidValueError: a limit below 1.
            PlanError, MissingProfileError: there is no such plan.
        """
        return self._compute_once("plan", (query, limit), lambda: self._proved(query, limit))

    def first_plan(self, query: PlanQuery, limit: float | None) -> Plan:
        """Returns the plan if it is known; otherwise one found without proof, in a fraction of the time.

        Raises:
            InvalidValueError, PlanError, MissingProfileError: as for :meth:`plan`.
        """
        if self.limit_scope == "iteration" or self.is_known(query, limit):
            return self.plan(query, limit)
        first = self._compute_once("first plan", (query, limit), lambda: self._search(query, limit, proving=False))
        if optimality_factor(first.optimality) <= NEAR:
            return self._compute_once("plan", (query, limit), lambda: first)
        return first

    def quick_plan(self, query: PlanQuery, limit: float | None) -> Plan:
        """Returns the best plan that is known, or found within a moment where the search takes longer.

        Raises:
            InvalidValueError, PlanError, MissingProfileError: as for :meth:`plan`.
        """
        check_limit(limit)
        if (query, limit) not in self._cache["first plan"] and not self.is_known(query, limit):
            quick = None if self.limit_scope == "iteration" else self._quick(query, limit)
            if quick is not None:
                return quick
        return self.first_plan(query, limit)

    def is_known(self, query: PlanQuery, limit: float | None) -> bool:
        """Whether :meth:`plan` has its result."""
        return (query, limit) in self._cache["plan"]

    def _quick(self, query: PlanQuery, limit: float | None) -> Plan | None:
        """Returns the better one of a quick plan and the fastest known one within a lower limit."""
        lower = [
            plan
            for kind in ("plan", "first plan")
            for (asked, bound), plan in list(self._cache[kind].items())
            if asked == query and bound is not None and (limit is None or bound < limit)
        ]
        fastest = sorted(lower, key=lambda plan: plan.iteration_time)[:1]
        return quick_plan(self.profile, self.costs(query), limit, fastest)

    def _proved(self, query: PlanQuery, limit: float | None) -> Plan:
        """Returns the plan that the whole search finds, or the first one with the better bound if that is faster."""
        proved = self._search(query, limit, proving=True)
        first: Plan | None = self._cache["first plan"].get((query, limit))
        if first is None or proved.iteration_time <= first.iteration_time:
            return proved
        least = proved.iteration_time / optimality_factor(proved.optimality)
        return replace(first, optimality=certificate(first.iteration_time / least))

    def _search(self, query: PlanQuery, limit: float | None, *, proving: bool) -> Plan:
        check_limit(limit)
        return plan_from_costs(self.profile, self.costs(query), limit, self.limit_scope, proving=proving)

    def frontier(self, query: PlanQuery) -> Frontier:
        """Returns all efficient plans; takes milliseconds to seconds."""
        return self._compute_once("frontier", query, lambda: frontier(self.profile, query.cluster, query.global_batch))

    def shared(self, query: PlanQuery) -> SharedCluster:
        """Returns ways to share the cluster; computes a frontier for every smaller GPU count, too."""
        return self._compute_once(
            "shared", query, lambda: share(self.profile, query.cluster, query.global_batch, self.background)
        )

    def compare(self, view: View, query: PlanQuery) -> Frontier | SharedCluster:
        """Returns the frontier or the shared cluster, depending on the view."""
        return self.frontier(query) if view == "frontier" else self.shared(query)

    def cached(self, view: View, query: PlanQuery) -> Frontier | SharedCluster | None:
        """Returns the result of :meth:`compare` if it is cached, else None."""
        found: Frontier | SharedCluster | None = self._cache[view].get(query)
        return found

    def _compute_once(self, kind: str, key: Hashable, compute: Callable[[], Answer]) -> Answer:
        # Two threads may both compute a missing result; the results are equal.
        cached = self._cache[kind]
        answer: Answer | None = cached.get(key)
        if answer is None:
            answer = cached[key] = compute()
            while len(cached) > CACHE_SIZE:
                cached.popitem(last=False)
        return answer
