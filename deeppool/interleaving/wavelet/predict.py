"""Predicted gains of waves from a profile and a cluster, for GPUs that this machine need not have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeppool.cluster.cluster import Cluster
from deeppool.costs.communication import Network, default_model
from deeppool.device.kinds import find_kind
from deeppool.interleaving.wavelet.rotation import partitions
from deeppool.interleaving.wavelet.step_time import PartitionCosts, vanilla_step_time, waves_step_time
from deeppool.interleaving.wavelet.tick_tock_time import TickTockCosts, tick_tock_time
from deeppool.planning.evaluate.baselines import DataParallelTime, data_parallel_times
from deeppool.planning.evaluate.memory import memory_model
from deeppool.planning.request import cost_table
from deeppool.profiling.table import Profile
from deeppool.profiling.update_estimate import estimated_update_per_byte
from deeppool.units import format_count, format_seconds


@dataclass(frozen=True, slots=True)
class TickTockPrediction:
    """Predicted iterations of one wave, of two waves, and of one wave of twice the batch."""

    gpus: int
    samples: int
    """Of an iteration of one wave, on each GPU."""
    one: float
    """Seconds of an iteration."""
    two: float
    doubled: float
    micro_steps: int = 1
    """Those of the one of twice the batch: more than 1 where a GPU does not hold it at once."""

    @property
    def gain(self) -> float:
        """Throughput of two waves in times that of one."""
        return self.one / self.two

    @property
    def gain_over_doubled(self) -> float:
        """Throughput of two waves in times that of one of twice the batch."""
        return self.doubled / 2 / self.two

    def __str__(self) -> str:
        return (
            f"{format_count(self.gpus, 'GPU')}, {self.samples} samples each: two waves take "
            f"{format_seconds(self.two)} an iteration, {self.gain:.2f} times as fast as one, "
            f"{self.gain_over_doubled:.2f} times as one of twice the batch"
            f"{f' in {self.micro_steps} micro-steps' if self.micro_steps > 1 else ''}"
        )


@dataclass(frozen=True, slots=True)
class PartitionPrediction:
    """Predicted steps of partitions that rotate over as many GPUs, and of other ways to train the same samples."""

    gpus: int
    samples: int
    """Of the batch of a wave; a step is of as many waves as there are GPUs."""
    waves: float
    """Seconds of a step."""
    plain: float
    """Seconds of plain model parallelism for the batches of a step, one rank at a time."""
    data_parallel: float | None
    """Seconds of DDP; None: a GPU does not hold the model."""

    @property
    def gain(self) -> float:
        """Speed in times that of plain model parallelism."""
        return self.plain / self.waves

    @property
    def gain_over_data_parallel(self) -> float | None:
        """Speed in times that of DDP; None: a GPU does not hold the model."""
        return None if self.data_parallel is None else self.data_parallel / self.waves

    def __str__(self) -> str:
        gain = self.gain_over_data_parallel
        beside = "DDP does not fit" if gain is None else f"{gain:.2f} times as fast as DDP"
        return (
            f"{format_count(self.gpus, 'GPU')}, {self.samples} samples a wave: {self.gpus} waves take "
            f"{format_seconds(self.waves)}, {self.gain:.2f} times as fast as one rank at a time; {beside}"
        )


def _data_parallel(profile: Profile, cluster: Cluster, samples: int) -> DataParallelTime:
    """Returns DDP with some samples on each GPU, in micro-steps where they do not fit at once."""
    batch = cluster.gpus * samples
    return data_parallel_times(profile, cost_table(profile, cluster, batch), memory_model(profile, batch))[-1]


def tick_tock_costs(profile: Profile, network: Network, samples: int) -> TickTockCosts:
    """Returns the parts of an iteration with some samples on each GPU.

    On a GPU two waves beside each other are taken to take as long as one batch of twice the samples and a second
    update, of bytes over bandwidth; on a core they share its time. A backward ends with the average of both waves'
    gradients, which moves five values for each weight, as an estimated update does, and with the update. No wave waits
    for memory that the other one frees, as it may where a GPU reuses large blocks.
    """
    times = [profile.time(layer, samples) for layer in range(len(profile.graph.layers))]
    update = sum(profile.update_times())
    moved = sum(profile.graph.gradient_bytes) * estimated_update_per_byte(profile.device, profile.device_name)
    doubled = profile.step_time(2 * samples) + moved
    beside = 0.5 if not doubled or find_kind(profile.device).on_cores else profile.step_time(samples) / doubled
    return TickTockCosts(
        forward=sum(time.forward for time in times),
        backward=sum(time.backward for time in times) + moved + update,
        exchange=network.all_reduce_time(network.cluster.gpus, sum(profile.graph.gradient_bytes)),
        beside=min(1.0, max(0.5, beside)),
    )


def predict_tick_tock(profile: Profile, cluster: Cluster, samples: int) -> TickTockPrediction:
    """Returns the predicted iterations of data parallelism on a cluster.

    Args:
        profile: layer times up to twice the samples.
        cluster: the GPUs and links.
        samples: samples of an iteration of one wave, on each GPU.
    """
    one, doubled = (_data_parallel(profile, cluster, batch) for batch in (samples, 2 * samples))
    two = tick_tock_time(tick_tock_costs(profile, Network(cluster, default_model(cluster, profile.device)), samples))
    return TickTockPrediction(cluster.gpus, samples, one.seconds, two, doubled.seconds, doubled.micro_steps)


def partition_costs(
    profile: Profile, parts: Sequence[Sequence[int]], cluster: Cluster, samples: int
) -> list[PartitionCosts]:
    """Returns the costs of partitions that rotate over as many GPUs of a cluster.

    Sending weights to all ranks takes half of summing their gradients, which is a reduce-scatter and an all-gather.

    Args:
        profile: the layer times.
        parts: consecutive layers of each partition.
        cluster: the links.
        samples: samples of one wave's batch.
    """
    cluster = replace(cluster, gpus=len(parts))
    network, link = Network(cluster, default_model(cluster, profile.device)), cluster.link(len(parts))
    found = []
    for part in parts:
        times = [profile.time(layer, samples) for layer in part]
        size = sum(profile.graph.gradient_bytes[layer] for layer in part)
        moved = samples * _bytes_across(profile, part[-1])
        summed = network.all_reduce_time(cluster.gpus, size)
        found.append(
            PartitionCosts(
                forward=sum(time.forward for time in times),
                backward=sum(time.backward for time in times),
                moved=link.latency + moved / link.bandwidth if moved else 0.0,
                weights=summed / 2,
                gradients=summed,
            )
        )
    return found


def predict_partitions(profile: Profile, cluster: Cluster, samples: int) -> PartitionPrediction:
    """Returns the predicted step of as many waves as there are GPUs; in the end each rank updates its own partition.

    Args:
        profile: the layer times; partitions are balanced by them.
        cluster: the GPUs and links.
        samples: samples of one wave's batch.
    """
    seconds = [profile.time(layer, samples).total for layer in range(len(profile.graph.layers))]
    parts = partitions(profile.graph, cluster.gpus, seconds)
    costs, rival = partition_costs(profile, parts, cluster, samples), _data_parallel(profile, cluster, samples)
    updates = profile.update_times()
    update = max(sum(updates[layer] for layer in part) for part in parts)
    plain = cluster.gpus * vanilla_step_time(costs) + update
    fitting = rival.seconds if rival.fits(cluster.memory) else None
    return PartitionPrediction(cluster.gpus, samples, waves_step_time(costs) + update, plain, fitting)


def _bytes_across(profile: Profile, last: int) -> int:
    """Returns the bytes per sample that layers up to one hand on to later ones, each tensor once."""
    sent: dict[int, int] = {}
    for layer in profile.graph.layers[last + 1 :]:
        for source, size in zip(layer.predecessors, layer.input_bytes, strict=True):
            if source <= last:
                sent[source] = max(sent.get(source, 0), size)
    return sum(sent.values())
