"""Checks a plan of transfers that a user gives: it must be one of this training."""

from collections import Counter
from collections.abc import Sequence

from deeppool.collectives.batching import Gradient
from deeppool.collectives.patterns import ALL_REDUCES, HALVES, LIBRARY
from deeppool.errors import InvalidValueError
from deeppool.records.transfer_plan import TransferPlan


def check_given(plan: TransferPlan, gradients: Sequence[Gradient]) -> None:
    """Checks that a plan sends all gradients together with the same ones, once or in two halves.

    Raises:
        InvalidValueError: it is the plan of another training, or its patterns do not sum each gradient once.
    """
    sizes = {each.name: each.size for each in gradients}
    ranks = {each.name: each.ranks for each in gradients}
    sent = Counter(name for transfer in plan.transfers for name in transfer.gradients)
    if set(sent) != set(sizes):
        wrong = sorted(set(sent).symmetric_difference(sizes))
        raise InvalidValueError(
            f"the plan of transfers sends {len(sent)} gradients, the training sums {len(sizes)}; {len(wrong)} are "
            f"in one of them only, such as {wrong[0]} (give the plan of a training of this model, or none)"
        )
    for transfer in plan.transfers:
        if not transfer.gradients:
            raise InvalidValueError("the plan of transfers sends a batch of no gradients (leave it out)")
        first = transfer.gradients[0]
        size = sum(sizes[name] for name in transfer.gradients)
        if size != transfer.size or any(ranks[name] != transfer.ranks for name in transfer.gradients):
            raise InvalidValueError(
                f"the plan of transfers sends {first} with {transfer.size} B over ranks "
                f"{list(transfer.ranks)}, the training has {size} B and ranks {list(ranks[first])} "
                "(give the plan of a training of this model on these ranks, or none)"
            )
        patterns = tuple(other.pattern for other in plan.transfers if other.gradients == transfer.gradients)
        for name in transfer.gradients:
            if len(patterns) > 2 or len(patterns) != sent[name]:
                raise InvalidValueError(
                    f"the plan of transfers sends {name} {sent[name]} times (send a batch once, or in two halves)"
                )
        if patterns not in _SUMS:
            raise InvalidValueError(
                f"the plan of transfers sends {first} by {', then '.join(patterns)}, which is no sum (once by one of "
                f"{', '.join((LIBRARY, *ALL_REDUCES))}; or by {'; '.join(map(' and later '.join, HALVES.values()))})"
            )


_SUMS = {*((pattern,) for pattern in (LIBRARY, *ALL_REDUCES)), *HALVES.values()}
"""Patterns of the transfers of a batch, in their order, that give each rank the sum."""
