"""The ``optimality`` field of plans: how far from the optimum a plan may be."""

import math

from deeppool.planning.search.limited_costs import ROUNDING


def certificate(factor: float) -> str:
    """Returns the claim for a time of at most ``factor`` times the optimum; rounded up, or it would be no bound."""
    return "exact" if factor <= 1 + ROUNDING else f"bound {round_up(factor):.3f}"


def optimality_factor(optimality: str) -> float:
    """Returns the factor of a claim: 1 for ``exact``."""
    return 1.0 if optimality == "exact" else float(optimality.removeprefix("bound "))


def round_up(factor: float) -> float:
    """Returns a factor with three decimals that is no less."""
    return math.ceil(1000 * factor) / 1000
