"""``dp.advise``: advice on a model and a cluster."""

import shlex

from deeppool.advice.layer_times import layer_times, names_profile, profile_command
from deeppool.advice.record import Advice
from deeppool.advice.techniques import (
    burst_parallelism,
    collocation,
    crossover,
    ordered_transfers,
    partial_collectives,
    replicas_too_large,
    two_waves,
)
from deeppool.base.arguments import typed
from deeppool.base.interruption import interruptible
from deeppool.cluster.cluster import Cluster, as_cluster, is_preset
from deeppool.device.protocol import Precision
from deeppool.graph.capture.capture import CapturedModel, Model
from deeppool.graph.shapes import Shapes
from deeppool.job import Progress
from deeppool.planning.planner import frontier, plan
from deeppool.planning.request import cost_table
from deeppool.profiling.default_cluster import cluster_for, cluster_of
from deeppool.profiling.table import Profile
from deeppool.records.files import file_name


@interruptible
@typed
def advise(
    model: Profile | CapturedModel | Model,
    cluster: Cluster | int,
    global_batch: int,
    *,
    device: str = "a100-80",
    precision: Precision = "tf32",
    input_shape: Shapes | None = None,
    on_progress: Progress | None = None,
) -> Advice:
    """Returns which techniques are worth it over DDP, with the evidence, and what to do next.

        advice = dp.advise("inception_v3", 8, 32, device="h100")
        print(advice.explain())

    Args:
        model: a profile, its file or the name of a shipped one, or what :func:`deeppool.capture` takes.
        cluster: the GPUs and links, or a number of GPUs: of the DGX of the profile's GPU, or cores of this machine.
        global_batch: samples per iteration, over all GPUs.
        device: where the layer times are from: a GPU of :func:`deeppool.estimate`, or a device as for
            :func:`deeppool.profile` to measure them on. A profile has its own, and its own precision.
        precision: as for :func:`deeppool.estimate`.
        input_shape: shape of one sample, for a model that is not captured yet; not with a profile.
        on_progress: see :data:`deeppool.job.Progress`.

    Raises:
        InvalidValueError: no samples, an unknown device, or the shape of a profile.
        PlanError, MissingProfileError: as for :func:`deeppool.plan`.
    """
    gpus = as_cluster(cluster).gpus
    times = layer_times(
        model,
        gpus,
        global_batch,
        device=device,
        precision=precision,
        input_shape=input_shape,
        on_progress=on_progress,
    )
    named_profile = names_profile(model)
    name = shlex.quote(str(model)) if named_profile else file_name(times.graph.model)
    place = cluster_of(times, cluster)
    command = f"deeppool plan {name} --gpus {gpus} --global-batch {global_batch}{cluster_option(place, times)}"
    fastest = plan(times, place, global_batch)
    costs = cost_table(times, fastest.cluster, global_batch)
    found = frontier(times, fastest.cluster, global_batch)
    compared = fastest.comparison
    baseline = compared.fastest
    return Advice(
        plan=fastest,
        frontier=found,
        findings=(
            burst_parallelism(fastest, command),
            *(
                (
                    collocation(found, times, costs, compared, name, command),
                    ordered_transfers(times, costs, compared),
                    crossover(times, costs, compared),
                    two_waves(times, costs, compared),
                )
                if compared.fitting
                else replicas_too_large()
            ),
            partial_collectives(command, ranks=max(baseline.gpus, *(layer.gpu_count for layer in fastest.layers)) > 1),
        ),
        profile_command=profile_command(model, name, times, device),
    )


def cluster_option(cluster: Cluster, profile: Profile) -> str:
    """Returns the option of a command that names a cluster; empty for the default of the profile."""
    if cluster == cluster_for(profile, cluster.gpus):
        return ""
    return f" --cluster {cluster.name if is_preset(cluster) else 'CLUSTER.json'}"
