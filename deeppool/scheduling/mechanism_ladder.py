"""The mechanisms of sharing a device, added one at a time: DeepPool's figure 11."""

from dataclasses import dataclass, replace

from deeppool.base.sharing import POLICIES, Sharing


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung of the ladder."""

    sharing: Sharing
    batch: int
    """Batch of the background."""


def mechanism_ladder(
    batch: int = 4, smaller_batch: int = 1, bound: float = 0.01, share: float | None = None
) -> dict[str, Rung]:
    """Returns the rungs, each with one more mechanism than the one before; share and bound are not in the paper.

    CUDA graphs, the paper's first step, are not a mechanism of sharing: a plan of a profile with graphs has
    them on every rung.

    Args:
        batch: batch of the background.
        smaller_batch: batch on the rungs that make it smaller, so that the foreground waits less for running pieces.
        bound: bound on the foreground's mean slowdown, on the last rung: 0.01 is 1 %.
        share: part of the multiprocessors that the background may use, on a rung of its own, which the last one does
            not keep; None: there is no such rung.
    """
    paced, feedback = POLICIES["paced"], POLICIES["feedback"]
    assert paced is not None and feedback is not None
    with_share = {} if share is None else {f"+ SM share {100 * share:g} %": replace(feedback, share=share)}
    return {
        "naive": Rung(Sharing(priority="normal"), batch),
        "+ priority": Rung(Sharing(), batch),
        "+ pacing": Rung(paced, batch),
        "+ feedback": Rung(feedback, batch),
        "+ smaller batch": Rung(feedback, smaller_batch),
        **{name: Rung(sharing, smaller_batch) for name, sharing in with_share.items()},
        f"+ bound {100 * bound:g} %": Rung(replace(feedback, max_slowdown=bound), smaller_batch),
    }
