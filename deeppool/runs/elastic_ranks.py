"""Chooses, for each start of the ranks of a training, the GPUs that can be used and the plan for so many."""

import os
from collections.abc import Collection
from pathlib import Path

from deeppool.base.number_checks import whole_number
from deeppool.errors import InvalidValueError, PlanError, ProfileError, RunError
from deeppool.planning.plan import Plan
from deeppool.planning.replanning.fewer_gpus import plan_for_gpus
from deeppool.processes.launcher import Launcher
from deeppool.profiling.table import Profile


def check_elastic(
    plan: Plan,
    min_ranks: int,
    profile: Profile | None,
    checkpoints: str | os.PathLike[str] | None,
    restarts: int,
) -> int:
    """Returns ``min_ranks`` if a training by the plan can go on with fewer ranks.

    Raises:
        InvalidValueError: it is out of its bounds, or what it needs is missing.
    """
    min_ranks = whole_number("min_ranks", min_ranks, 1, plan.gpus, f"the plan is for {plan.gpus} GPUs")
    if profile is None or checkpoints is None or restarts < 1:
        raise InvalidValueError(
            "min_ranks needs the plan's profile, to plan for fewer, a folder of checkpoints, to go on from, and at "
            f"least 1 restart, got {'no profile' if profile is None else 'a profile'}, "
            f"{'no checkpoints' if checkpoints is None else 'checkpoints'} and {restarts} restarts"
        )
    return min_ranks


class ElasticRanks:
    """GPUs and plans of a training that goes on while at least ``min_ranks`` GPUs are left.

    A GPU is lost while the launcher does not have it, and it is back when the launcher has it again. It is also given
    up, for the rest of the training, when its rank is the first to fail twice in a row without a checkpoint between.
    """

    def __init__(self, plan: Plan, profile: Profile, launcher: Launcher, min_ranks: int) -> None:
        """Plans for the fewest GPUs, so that what cannot be planned is an error before the training.

        Raises:
            PlanError: the profile is not the plan's, or no plan for ``min_ranks`` GPUs fits into their memory.
            MissingProfileError: the profile has no time for a per-GPU batch.
        """
        self._whole, self._profile, self._launcher, self._min_ranks = plan, profile, launcher, min_ranks
        self._plans = {plan.gpus: plan}
        self._given_up: set[int] = set()
        self._last_fault: tuple[int, Path | None] | None = None
        try:
            self._plan_for(min_ranks)
        except PlanError as error:
            raise PlanError(f"min_ranks is {min_ranks}: {error}") from error

    def plan_next(self) -> Plan:
        """Assigns GPUs to the ranks that are started next, and returns their plan.

        Raises:
            RunError: too few GPUs are left, or there is no plan for as many.
        """
        gpus = self._usable()
        if len(gpus) < self._min_ranks:
            given_up = f"; GPUs {_listed(sorted(self._given_up))} were given up" if self._given_up else ""
            raise RunError(
                f"{len(gpus)} of {self._whole.gpus} GPUs can be used{given_up}, min_ranks is {self._min_ranks} (the "
                "same command goes on from the last checkpoint when more are there)"
            )
        try:
            plan = self._plan_for(len(gpus))
        except (PlanError, ProfileError) as error:
            raise RunError(f"there is no plan for the {len(gpus)} GPUs that are left: {error}") from error
        self._launcher.assign(gpus)
        return plan

    def can_grow(self) -> bool:
        """Whether a plan for more GPUs than the running ranks have could start now."""
        running = self._launcher.gpus
        if len(running) == self._whole.gpus:
            return False
        gpus = self._usable(in_use=running)
        if len(gpus) <= len(running):
            return False
        try:
            self._plan_for(len(gpus))
        except (PlanError, ProfileError):
            return False
        return True

    def record_fault(self, rank: int | None, checkpoint: Path | None) -> int | None:
        """Records which rank failed first; returns its GPU if it is given up.

        Args:
            rank: the rank; None: it is unknown.
            checkpoint: checkpoint that the training goes on from.
        """
        fault = None if rank is None else (self._launcher.gpus[rank], checkpoint)
        repeated = fault is not None and fault == self._last_fault
        self._last_fault = fault
        if fault is None or not repeated:
            return None
        self._given_up.add(fault[0])
        return fault[0]

    def switch(self, plan: Plan) -> None:
        """Replaces the plan for as many GPUs as another plan has."""
        self._plans[plan.gpus] = plan

    def _usable(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        # A probe of one that was given up may take until its time limit.
        available = self._launcher.available({*in_use, *self._given_up})
        present = [gpu for gpu in available if gpu not in self._given_up]
        return tuple(present[: self._whole.gpus])

    def _plan_for(self, gpus: int) -> Plan:
        if gpus not in self._plans:
            self._plans[gpus] = plan_for_gpus(self._whole, self._profile, gpus)
        return self._plans[gpus]


def _listed(gpus: Collection[int]) -> str:
    return ", ".join(map(str, gpus))
