"""The convergence bound of eager-SGD: how late gradients and small rounds slow the training down.

    bound = convergence_bound(ranks=8, quorum=1, staleness=32, smoothness=1.0, second_moment=2.0, gap=5.0, target=0.01)
    print(bound)

Theorem 5.2 of Li et al. (PPoPP 2020) for a loss f that is bounded from below by m and L-smooth, and gradients without
bias whose squared norm is at most M² in the mean: with a learning rate of at most

    min(√ε P / (√12 L τ M (P - Q)),  √ε P / (4 √3 L τ M (P - Q)),  ε / (12 M² L))

some iterate has ‖∇f(w)‖² ≤ ε after Θ((f(w₀) - m) / (ε α)) updates. Q is the least number of ranks in a round, τ the
most rounds that a gradient waits. The second term is always the smaller of the first two.

The constant of Θ follows from the proof's own steps. Let x be the weights that all gradients so far, late ones too,
would give. E‖x - w‖ ≤ α τ M (P - Q) / P, and descent on x gives, in the mean over T updates,

    ‖∇f(w)‖² ≤ 4 (f(w₀) - m) / (α T) + 2 L α M² + 4 (L α τ M (P - Q) / P)²

The last two terms are at most ε/6 and ε/12 at that learning rate, so T = 16/3 (f(w₀) - m) / (ε α) updates are enough.
"""

import math
from dataclasses import dataclass

from deeppool.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class ConvergenceBound:
    """What the theorem guarantees; it holds for any loss of its kind, so a training usually needs far less."""

    learning_rate: float
    """The highest one that the theorem allows."""
    updates: int
    """Updates after which some iterate has a squared gradient norm of at most the target."""
    synchronous_updates: int
    """The same where every round holds a gradient of each rank."""

    def __str__(self) -> str:
        return (
            f"at most {self.updates:,} updates at learning rate {self.learning_rate:.3g}, "
            f"{self.updates / self.synchronous_updates:.3g}x those of synchronous SGD"
        )


def convergence_bound(
    *, ranks: int, quorum: int, staleness: int, smoothness: float, second_moment: float, gap: float, target: float
) -> ConvergenceBound:
    """Computes the bound.

    Args:
        ranks: P.
        quorum: Q, the least number of ranks that contribute to a round: 1 for solo; for majority, which has only a
            mean of P / 2, 1 too.
        staleness: τ, the most consecutive rounds that a gradient waits: the rule's ``staleness_limit``.
        smoothness: L, the Lipschitz constant of the gradient.
        second_moment: M, the root of the bound of the mean squared norm of a rank's gradient.
        gap: f(w₀) - m, what the loss can fall by at most.
        target: ε, the squared norm of the gradient to reach.

    Raises:
        InvalidValueError: a quorum that is not 1 to P, or a value that is not positive.
    """
    if not 1 <= quorum <= ranks:
        raise InvalidValueError(f"quorum is 1 to {ranks}, the number of ranks, got {quorum}")
    positive = {"smoothness": smoothness, "second_moment": second_moment, "gap": gap, "target": target}
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise InvalidValueError(f"{name} is a positive number, got {value:g}")
    if staleness < 0:
        raise InvalidValueError(f"staleness is at least 0, got {staleness}")
    noise = target / (12 * second_moment**2 * smoothness)
    missed = staleness * (ranks - quorum)
    late = math.sqrt(target) * ranks / (4 * math.sqrt(3) * smoothness * second_moment * missed) if missed else math.inf
    rate = min(noise, late)
    return ConvergenceBound(rate, _updates(rate, gap, target), _updates(noise, gap, target))


def _updates(rate: float, gap: float, target: float) -> int:
    return math.ceil(16 / 3 * gap / (target * rate))
