"""What plans of transfers are made of, from a profile: parts of the model, and its gradients."""

from deeppool.collectives.batching import Gradient
from deeppool.errors import InvalidValueError
from deeppool.profiling.table import Profile
from deeppool.records.transfer_plan import PartTimes


def parts_of(profile: Profile, batch: int, ranks: int) -> tuple[list[PartTimes], list[Gradient]]:
    """Returns the parts of a model in the order of their forwards, and its gradients in the order of backward.

    A part is a layer with parameters and those up to the next such layer; layers before the first one belong to it.
    Branches run one after the other. A part's forward begins with the update of its parameters. Tied parameters
    belong to the first layer that uses them.

    Args:
        profile: layer times. Where a profile has only the sum of a layer's parameters, they are one gradient.
        batch: per-GPU batch.
        ranks: number of ranks that train; all have the same parts.

    Raises:
        InvalidValueError: the model has no parameters.
        MissingProfileError: the profile has no time for the batch.
    """
    everyone = tuple(range(ranks))
    parts, gradients = list[PartTimes](), list[Gradient]()
    before = (0.0, 0.0)
    """Forward and backward of the layers before the first one with parameters."""
    for index, layer in enumerate(profile.graph.layers):
        time = profile.time(index, batch)
        forward, backward = before[0] + time.forward, before[1] + time.backward
        own = profile.graph.gradients[index]
        if own:
            gradients += [Gradient(name, size, len(parts), everyone) for name, size in own.items()]
            update = sum(own.values()) * profile.update_seconds_per_byte
            parts.append(PartTimes(layer.name, forward + update, backward, everyone))
        elif parts:
            last = parts[-1]
            parts[-1] = PartTimes(last.name, last.forward + forward, last.backward + backward, everyone)
        before = (0.0, 0.0) if parts else (forward, backward)
    if not parts:
        raise InvalidValueError(f"{profile.graph.model} has no parameters, so there is nothing to send")
    return parts, gradients[::-1]
