"""Reshard as a schedule: all its transfers in one round, with samples as chunks."""

from deeppool.collectives.layout import Layout
from deeppool.collectives.reshard import reshard
from deeppool.collectives.schedule import Schedule, schedule_of


def reshard_schedule(source: Layout, destination: Layout) -> Schedule:
    """Returns the schedule that takes a batch from one layout to another."""
    transfers = reshard(source, destination)
    ranks = 1 + max(*source.gpus, *destination.gpus)
    return schedule_of("reshard", ranks, source.batch, [transfers] if transfers else [])
