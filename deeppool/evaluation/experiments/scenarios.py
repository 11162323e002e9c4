"""Simulates a foreground on a whole cluster in the three scenarios of DeepPool's figure 9."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from deeppool.base.sharing import Policy, Sharing
from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import NetworkModel
from deeppool.errors import InvalidValueError
from deeppool.planning.plan import Plan
from deeppool.planning.planner import plan as make_plan
from deeppool.planning.studies.collocation_tradeoff import share
from deeppool.planning.studies.tradeoff_record import SharedCluster
from deeppool.profiling.default_cluster import cluster_of
from deeppool.profiling.table import Profile
from deeppool.simulation.cluster.job_costs import ClusterStrategy
from deeppool.simulation.cluster.record import ClusterSimulation
from deeppool.simulation.cluster.simulate import simulate_cluster
from deeppool.simulation.cluster.workload import Source, single_foreground_trace
from deeppool.simulation.device.interference import Interference
from deeppool.units import format_count, format_rate, format_seconds

ScenarioName = Literal["DP", "BP", "BP + Col"]
"""DP: data parallel foreground, on the GPUs on which it is fastest; BP: burst parallel; BP + Col: burst parallel, a
background in the idle time of each GPU. GPUs that the foreground never uses train a background in all three."""
ITERATIONS = 100


@dataclass(frozen=True, slots=True)
class Scenario:
    """Simulation results of one scenario."""

    name: ScenarioName
    iteration_time: float
    """Mean iteration time of the foreground."""
    foreground_throughput: float
    """Samples per second of the foreground."""
    background_throughput: float

    @property
    def throughput(self) -> float:
        """Cluster throughput: foreground plus background."""
        return self.foreground_throughput + self.background_throughput

    def __str__(self) -> str:
        return (
            f"{self.name}: {format_seconds(self.iteration_time)} an iteration, "
            f"{format_rate(self.throughput, 4)} samples/s = "
            f"{format_rate(self.foreground_throughput, 4)} + {format_rate(self.background_throughput, 4)}"
        )


@dataclass(frozen=True, slots=True)
class ThreeScenarios:
    """Simulation results of all scenarios for one foreground."""

    model: str
    """Of the foreground and of the backgrounds."""
    cluster: Cluster
    global_batch: int
    background_batch: int
    plan: Plan
    """The burst-parallel plan of BP and BP + Col."""
    scenarios: tuple[Scenario, ...]
    background_alone_throughput: float
    """Samples per second with only a background on every GPU: the paper's BG Only."""
    single_gpu_iteration_time: float
    device_name: str
    provenance: Literal["measured", "estimated"]
    """Provenance of the layer times."""
    modelled: str
    """Model of the idle time: where interference was measured, or which share of it a background uses."""

    def scenario(self, name: ScenarioName) -> Scenario:
        """Returns the scenario of a name."""
        return next(found for found in self.scenarios if found.name == name)

    def gain(self, name: ScenarioName, over: ScenarioName) -> float:
        """Returns the ratio of the cluster throughputs of two scenarios."""
        return self.scenario(name).throughput / self.scenario(over).throughput

    def speedup(self, name: ScenarioName) -> float:
        """Returns the speed-up of a scenario's foreground over one GPU."""
        return self.single_gpu_iteration_time / self.scenario(name).iteration_time

    def __str__(self) -> str:
        heading = (
            f"{self.model}, batch {self.global_batch} on {format_count(self.cluster.gpus, 'GPU')} "
            f"({self.cluster.name}), backgrounds of batch {self.background_batch}; {self.modelled}"
        )
        alone = f"BG only: {format_rate(self.background_alone_throughput, 4)} samples/s"
        return "\n  ".join([heading, *map(str, self.scenarios), alone])


def three_scenarios(
    profile: Profile,
    cluster: Cluster | int,
    global_batch: int,
    *,
    background_batch: int | None = None,
    foreground_loss: float = 0.1,
    harvest_of_idle: float = 1.0,
    interference: Interference | None = None,
    policy: Policy | Sharing = "priority",
    network_model: NetworkModel | None = None,
) -> ThreeScenarios:
    """Simulates a foreground data parallel, burst parallel, and burst parallel with background jobs of its model.

    The plan is the one of highest cluster throughput that is at most ``foreground_loss`` slower than the fastest one,
    and no slower than data parallelism: the paper sets its amplification limit for little impact on the foreground
    and a reasonable gain in throughput.

    Args:
        profile: profile of the foreground.
        cluster: its GPUs and links, or a number of GPUs of the profile's device; the foreground may have all of them.
        global_batch: global batch of the foreground.
        background_batch: batch on each GPU; the largest of its profile that fits unless given.
        foreground_loss: share of the foreground's throughput given up for the background's: 0.1 is 10 %.
        harvest_of_idle: the share of a foreground's gaps that a background gets, where interference is not given.
        interference: measured between kernels; None: backgrounds cost the foreground nothing.
        policy: name of the sharing mechanisms of backgrounds, where interference is given.
        network_model: as for :func:`deeppool.plan`, for data parallelism too.

    Raises:
        InvalidValueError: a loss that is not a share of 1; others as for :func:`deeppool.share`.
        PlanError, MissingProfileError: as for :func:`deeppool.share`.
    """
    if not 0 <= foreground_loss < 1:
        raise InvalidValueError(f"foreground_loss must be from 0 to less than 1, got {foreground_loss:g} (0.1 is 10 %)")
    cluster = cluster_of(profile, cluster)
    shared = share(
        profile,
        cluster,
        global_batch,
        profile,
        background_batch=background_batch,
        harvest_of_idle=harvest_of_idle,
        network_model=network_model,
    )
    chosen = _plan(shared, profile, foreground_loss, network_model)
    sources: dict[str, Source] = {"background": profile, "plan": chosen}

    trace = single_foreground_trace(
        "plan",
        cluster.gpus,
        global_batch,
        background="background",
        background_batch=shared.background_batch,
        iterations=ITERATIONS,
    )

    def simulate(strategy: ClusterStrategy) -> ClusterSimulation:
        return simulate_cluster(
            trace,
            cluster,
            strategy=strategy,
            sources=sources,
            interference=interference,
            policy=policy,
            harvest_of_idle=harvest_of_idle,
        )

    alone = shared.data_parallel
    simulated: dict[ScenarioName, ClusterSimulation] = {
        "BP": simulate("burst-parallel"),
        "BP + Col": simulate("collocated"),
    }
    return ThreeScenarios(
        model=shared.model,
        cluster=cluster,
        global_batch=global_batch,
        background_batch=shared.background_batch,
        plan=chosen,
        scenarios=(
            Scenario("DP", alone.iteration_time, alone.foreground_throughput, alone.background_throughput),
            *_scenarios(simulated),
        ),
        background_alone_throughput=shared.background_alone_throughput,
        single_gpu_iteration_time=shared.single_gpu_iteration_time,
        device_name=shared.device_name,
        provenance=shared.provenance,
        modelled=f"{100 * harvest_of_idle:g} % of the gaps harvested, no interference modelled"
        if interference is None
        else simulated["BP + Col"].interference,
    )


def _plan(shared: SharedCluster, profile: Profile, foreground_loss: float, network_model: NetworkModel | None) -> Plan:
    fastest = shared.points[0].speedup
    # A search that is bounded may have no plan as fast as data parallelism.
    least = max((1 - foreground_loss) * fastest, min(fastest, shared.data_parallel.speedup))
    point = shared.highest_throughput(least).point
    cluster = replace(shared.cluster, gpus=point.gpus)
    return make_plan(
        profile,
        cluster,
        shared.global_batch,
        point.amplification_limit,
        limit_scope="iteration",
        network_model=network_model,
    )


def _scenarios(simulated: dict[ScenarioName, ClusterSimulation]) -> Iterator[Scenario]:
    for name, found in simulated.items():
        yield Scenario(name, found.makespan / ITERATIONS, found.foreground_throughput, found.background_throughput)
