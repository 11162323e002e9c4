"""How a training sums its gradients, where that is not the default: what ``dp.train(gradient_sync=…)`` takes.

A method travels to every rank, which asks it for the driver of its trainer's iterations.
"""

from typing import Protocol

from deeppool.costs.communication import Network
from deeppool.execution.gradient_sync import ScheduleChoice
from deeppool.execution.trainer import SyncDriver, Trainer

METHOD = "gradient_sync.launched"
"""File of a run's private folder that holds the method, as its writers can run code."""


class GradientSyncMethod(Protocol):
    """Method by which a training sums its gradients; sent to the ranks with their code."""

    divides_stages: bool
    """Whether each layer with parameters is a part of the step by itself."""
    replays_graphs: bool
    """Whether parts may become graphs of the device."""
    ranks_wait: bool
    """Whether an update is complete when the last rank has computed it, or when the first one has."""

    def choose_schedule(self, network: Network) -> ScheduleChoice | None:
        """Returns the choice of the schedule of each all-reduce; None: the library's own all-reduce."""

    def driver(self, trainer: Trainer, network: Network) -> SyncDriver:
        """Makes the driver of a rank's trainer."""
