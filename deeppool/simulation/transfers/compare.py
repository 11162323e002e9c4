"""Simulates data-parallel iterations that differ in how gradients are sent."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from deeppool.base.arguments import typed
from deeppool.base.number_checks import whole_number
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.batching import Gradient
from deeppool.collectives.buckets import BUCKET_BYTES, DDP_BUCKETS
from deeppool.collectives.patterns import LIBRARY
from deeppool.collectives.plan_transfers import MEASURED_ERROR, PriceAllReduce, plan_transfers
from deeppool.collectives.transfer_methods import (
    CARAMEL,
    DDP,
    DEAR,
    HOROVOD,
    SERVERS,
    SHARDED,
    TUNED_DDP,
    ddp_transfers,
    dear_transfers,
    fused_transfers,
    server_transfers,
)
from deeppool.costs.communication import Network, default_model
from deeppool.costs.schedules import fastest_in_halves, fastest_of_all, pattern_prices
from deeppool.errors import InvalidValueError
from deeppool.planning.request import check_batch
from deeppool.profiling.table import Profile
from deeppool.records.transfer_plan import PartTimes, TransferPlan
from deeppool.simulation.transfers.comparison import MethodTransfers, TransferComparison
from deeppool.simulation.transfers.parts import parts_of

BUCKETS = tuple(2.0**exponent for exponent in range(16, 29))
"""Bytes of a bucket that are tried for the best one, beside DDP's default and a single bucket: 64 KiB to 256 MiB."""


@typed
def compare_transfers(profile: Profile, cluster: Cluster, global_batch: int, *, servers: int = 1) -> TransferComparison:
    """Simulates one data-parallel iteration by every method of sending gradients.

    =================  ===============================================================================================
    parameter server   each gradient by itself to one of ``servers`` ranks, in turn; parameters back in order of need
    sharded servers    each gradient in equal shares to all ranks, and back
    Horovod            in cycles of 5 ms what is ready, fused up to 64 MiB, by rings; the next forward waits for all
    DDP                buckets of 25 MiB by the library's all-reduce; the next forward waits for all
    DDP, best bucket   the same with the best of 15 bucket sizes for this model and network, with a small first or not
    DeAR, best bucket  buckets by two halves of rings, the second beside the next forward; the best of 15 sizes
    Caramel            :class:`deeppool.TransferScheduler`: batches, patterns and order from the model and the network
    =================  ===============================================================================================

    All methods compute the same parts one after the other, and send one transfer at a time per rank. Computing and
    transfers do not slow each other, and adding gradients costs nothing. On a cluster that was measured with schedules
    these price the patterns; else a schedule's price follows from the links, and the library's all-reduce is that of
    the plans of such a profile. Where that is NCCL's over several nodes, so are the rings of Horovod and DeAR, which
    pass through all ports of a node.

    Args:
        profile: layer times.
        cluster: the GPUs, of which all train, and their links.
        global_batch: samples per iteration, over all GPUs.
        servers: ranks that each hold some of the parameters in ``parameter server``, whole ones in turn.

    Raises:
        InvalidValueError: a cluster of one GPU, a model without parameters, or servers beyond the number of GPUs.
        PlanError: more GPUs than samples.
        MissingProfileError: the profile has no time for the per-GPU batch.
    """
    gpus = cluster.gpus
    if gpus < 2:
        raise InvalidValueError(f"cluster '{cluster.name}' has 1 GPU, so no gradients are sent (take 2 or more)")
    servers = whole_number("servers", servers, 1, gpus, "one of the GPUs each")
    global_batch = check_batch(gpus, global_batch)
    batch = -(-global_batch // gpus)
    parts, gradients = parts_of(profile, batch, gpus)
    network = Network(cluster, default_model(cluster, profile.device))
    by = partial(pattern_prices, network)
    rings = (lambda ranks, size: ("ring", by(LIBRARY)(ranks, size)[1])) if network.model == "nccl" else by("ring")

    def best_bucket(price: PriceAllReduce, *methods: Callable[..., TransferPlan]) -> TransferPlan:
        total = float(sum(each.size for each in gradients))
        plans = [
            method(parts, gradients, price, bucket)
            for method in methods
            for bucket in (BUCKET_BYTES, *(size for size in BUCKETS if size < total), total)
        ]
        return min(plans, key=lambda plan: plan.iteration_time)

    plans = {
        SERVERS: _placed(parts, gradients, by("parameter-server"), servers),
        SHARDED: server_transfers(parts, gradients, by("sharded-parameter-server")),
        HOROVOD: fused_transfers(parts, gradients, rings),
        DDP: ddp_transfers(parts, gradients, by(LIBRARY)),
        TUNED_DDP: best_bucket(by(LIBRARY), ddp_transfers, partial(ddp_transfers, first=DDP_BUCKETS.first)),
        DEAR: best_bucket(rings, dear_transfers),
        CARAMEL: plan_transfers(
            parts,
            gradients,
            partial(fastest_of_all, network),
            halves=partial(fastest_in_halves, cluster),
            error=0.0 if cluster.measured is None else MEASURED_ERROR,
        ),
    }
    return TransferComparison(
        model=profile.graph.model,
        cluster=cluster,
        global_batch=global_batch,
        servers=servers,
        device_name=profile.device_name,
        provenance=profile.provenance,
        methods=tuple(MethodTransfers(method, plan) for method, plan in plans.items()),
        caveats=profile.caveats(layer.name for layer in profile.graph.layers if batch > profile.batch_sizes[-1]),
    )


def _placed(
    parts: Sequence[PartTimes], gradients: Sequence[Gradient], price: PriceAllReduce, servers: int
) -> TransferPlan:
    """Plans transfers to servers, each of which holds whole parameters: in turn, in the order of forward."""
    placed = [
        replace(each, ranks=((len(gradients) - 1 - position) % servers,)) for position, each in enumerate(gradients)
    ]
    ranks = len(gradients[0].ranks)
    # A server has one transfer at a time, and it takes as long as it does with all ranks.
    return server_transfers(parts, placed, lambda _, size: price(ranks, size))
