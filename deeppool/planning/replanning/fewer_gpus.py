"""Plans the same training again for fewer GPUs of its cluster."""

from dataclasses import replace

from deeppool.costs.communication import Network
from deeppool.costs.table import price
from deeppool.planning.best_buckets import with_best_buckets
from deeppool.planning.plan import GpuCounts, Plan
from deeppool.planning.replanning.profile_correction import check_profile_matches
from deeppool.planning.replanning.replan import plan_again
from deeppool.planning.request import check_batch, gpu_counts_to_search
from deeppool.profiling.table import Profile


def plan_for_gpus(plan: Plan, profile: Profile, gpus: int) -> Plan:
    """Returns the best plan on some GPUs of a plan's cluster, with its global batch, limit and other options.

    Args:
        plan: plan for all GPUs.
        profile: profile that it was made from.
        gpus: number of GPUs; nodes are filled one after the other.

    Raises:
        PlanError: the profile is of another graph, device or precision, or no plan fits into the memory of the GPUs.
        MissingProfileError: the profile has no time for a per-GPU batch.
    """
    check_profile_matches(plan, profile)
    check_batch(gpus, plan.global_batch)
    network = Network(replace(plan.cluster, gpus=gpus), plan.network_model)
    powers = gpu_counts_to_search(max(plan.gpu_counts), plan.global_batch)
    which: GpuCounts = "powers" if plan.gpu_counts == powers else "all"
    counts = gpu_counts_to_search(gpus, plan.global_batch, which, network)
    costs = replace(price(profile, network, plan.global_batch, counts), overlap=plan.overlap_sync)
    return plan_again(plan, profile, with_best_buckets(costs))
