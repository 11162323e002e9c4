"""Methods to compare with, performed as Caramel's plans are: DeAR and parameter servers."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeppool.collectives.batching import Gradient
from deeppool.collectives.buckets import BUCKET_BYTES
from deeppool.collectives.transfer_methods import dear_transfers, server_transfers
from deeppool.costs.communication import Network
from deeppool.costs.schedules import pattern_prices
from deeppool.records.transfer_plan import PartTimes, TransferPlan


@dataclass(frozen=True, slots=True)
class DeAR:
    """Reduce-scatter beside the backward pass, all-gather beside the next forward (Zhang et al., arXiv 2302.12445)."""

    bucket_bytes: float = BUCKET_BYTES
    measured_updates: int = 1
    tried_updates: int = 0

    def plans(self, parts: Sequence[PartTimes], gradients: Sequence[Gradient], network: Network) -> list[TransferPlan]:
        """Plans buckets of a size, each sent in two halves of a ring."""
        return [dear_transfers(parts, gradients, pattern_prices(network, "ring"), self.bucket_bytes)]


@dataclass(frozen=True, slots=True)
class ParameterServer:
    """Each gradient by itself to one rank, or a share of it to each; the sums return beside the next forward."""

    sharded: bool = False
    """Whether every rank adds a share; False: rank 0 adds all."""
    measured_updates: int = 1
    tried_updates: int = 0

    def plans(self, parts: Sequence[PartTimes], gradients: Sequence[Gradient], network: Network) -> list[TransferPlan]:
        """Plans two transfers of each gradient."""
        pattern = "sharded-parameter-server" if self.sharded else "parameter-server"
        return [server_transfers(parts, gradients, pattern_prices(network, pattern))]
