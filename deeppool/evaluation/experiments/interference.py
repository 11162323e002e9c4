"""Interference on an emulated GPU, and what it leaves of the trade-off of DeepPool's figure 10."""

from dataclasses import replace

from deeppool.base.sharing import Policy, Sharing, find_sharing
from deeppool.collocation.interference.measure import measure_interference
from deeppool.costs.communication import NetworkModel
from deeppool.errors import InvalidValueError
from deeppool.planning.planner import plan as make_plan
from deeppool.planning.studies.collocation_tradeoff import efficient_points
from deeppool.planning.studies.tradeoff_record import OperatingPoint, SharedCluster
from deeppool.profiling.table import Profile
from deeppool.simulation.device.interference import Interference
from deeppool.simulation.plan.collocated_plan import simulate_collocated_plan

MATRICES = (64, 256, 1024)
DURATIONS = (1e-4, 3e-4, 1e-3)
"""Seconds: layers of the figures' models take 20 us to 1 ms."""
ITERATIONS = 100


def emulated_interference(gpu: str, policy: Policy | Sharing = "feedback") -> Interference:
    """Measures how kernels beside each other slow down on a GPU of a data sheet, in virtual time.

    Fewer kernels than :func:`deeppool.measure_interference` takes, and one round: virtual time has no noise.

    Args:
        gpu: a GPU of :func:`deeppool.estimate`.
        policy: the sharing mechanisms of the background, whose priority it gets.

    Raises:
        InvalidValueError: a policy without a background.
    """
    return measure_interference(
        device=f"emulated:{gpu}",
        matrices=MATRICES,
        durations=DURATIONS,
        arrangements=(_sharing(policy).priority,),
        seconds=0.01,
        rounds=1,
    )


def with_interference(
    shared: SharedCluster,
    profile: Profile,
    background: Profile,
    interference: Interference,
    policy: Policy | Sharing,
    *,
    network_model: NetworkModel | None = None,
    points: int = 12,
) -> SharedCluster:
    """Simulates plans of a shared cluster with a background on every GPU, in place of their predicted throughputs.

    A partition has no interference. Some of the plans are simulated, evenly over the trade-off: others might be better.

    Args:
        shared: predicted without interference.
        profile: profile of the foreground.
        background: profile of the background job.
        interference: measured on such a device.
        policy: the sharing mechanisms of the background.
        network_model: that of the prediction.
        points: number of plans to simulate; at least 2.

    Raises:
        InvalidValueError: a policy without a background, or no interference was measured for its priority.
    """
    sharing = _sharing(policy)
    last = len(shared.points) - 1
    chosen = sorted({round(index * last / (points - 1)) for index in range(points)})
    simulated = [
        _simulated(shared.points[index], shared, profile, background, interference, sharing, network_model)
        for index in chosen
    ]
    measured_on = f"{interference.device_name}, {interference.date}"
    return replace(shared, points=efficient_points(simulated), interference=measured_on, optimality="heuristic")


def _sharing(policy: Policy | Sharing) -> Sharing:
    sharing = find_sharing(policy)
    if sharing is None:
        raise InvalidValueError(f"policy '{policy}' has no background that could interfere (use feedback)")
    return sharing


def _simulated(
    point: OperatingPoint,
    shared: SharedCluster,
    profile: Profile,
    background: Profile,
    interference: Interference,
    sharing: Sharing,
    network_model: NetworkModel | None,
) -> OperatingPoint:
    plan = make_plan(
        profile,
        replace(shared.cluster, gpus=point.gpus),
        shared.global_batch,
        point.amplification_limit,
        limit_scope="iteration",
        network_model=network_model,
    )
    beside = simulate_collocated_plan(
        plan, background, interference, sharing, background_batch=shared.background_batch, iterations=ITERATIONS
    )
    time = plan.iteration_time * (1 + beside.slowdown)
    foreground = shared.global_batch / time
    # GPUs that the plan does not use train the background alone.
    unused = shared.gpus - len(beside.gpus) - len(beside.without_room)
    trained = beside.background_throughput + unused / shared.background_sample_time
    return replace(
        point,
        iteration_time=time,
        speedup=shared.single_gpu_iteration_time / time,
        foreground_throughput=foreground,
        background_throughput=trained,
        throughput=foreground + trained,
    )
