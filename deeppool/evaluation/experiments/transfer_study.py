"""Simulates how 16 networks send their gradients, after the study in Caramel's paper.

(Hashemi, Gropp, Campbell, "Model-Aware Network Scheduling")

The paper names some networks, 16 workers and 8 co-located parameter servers; not its GPUs, its network's speed, its
batches, or the other networks. These assumptions stand for them, and were fixed before any of the tables was made:

- 16 nodes of one GPU; every link has 25 Gbit/s in each direction and a latency of 50 us, repeated at 10 and 100 Gbit/s;
- layer times as estimated for an A100 in fp32 without TF32, 32 samples per GPU, images of 224 x 224 (Inception: 299);
  layers run one after the other, and transfers do not slow them;
- gradients in fp32, updates by SGD with momentum before a layer's next forward;
- 8 of the nodes are servers too: they hold whole parameters in turn, receive gradients beside the backward pass, and
  send parameters in order of need once all gradients have arrived;
- Horovod with its defaults of that time: 64 MiB, 5 ms, ring; DDP with 25 MiB, a ring, and its best of 15 bucket sizes;
  DeAR with its best one; Caramel with nothing to set;
- the networks are 16 of torchvision's; ResNet-152 stands for ResNet-v2-152, and AlexNet for AlexNet-v2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from deeppool.cluster.cluster import ETHERNET_25G, Cluster
from deeppool.collectives.transfer_methods import DEAR, SERVERS, SHARDED, TUNED_DDP
from deeppool.device.protocol import Precision
from deeppool.planning.report.tables import render, table
from deeppool.profiling.estimate.estimate import estimate
from deeppool.records.transfer_plan import TransferPlan
from deeppool.simulation.transfers.compare import compare_transfers
from deeppool.simulation.transfers.comparison import TransferComparison
from deeppool.units import format_seconds

if TYPE_CHECKING:
    from rich.table import Table

LARGE, USUAL = (3, 299, 299), (3, 224, 224)
NETWORKS: Mapping[str, tuple[int, int, int]] = {
    "alexnet": USUAL,
    "vgg11": USUAL,
    "vgg13": USUAL,
    "vgg16": USUAL,
    "vgg19": USUAL,
    "googlenet": USUAL,
    "inception_v3": LARGE,
    "resnet18": USUAL,
    "resnet34": USUAL,
    "resnet50": USUAL,
    "resnet101": USUAL,
    "resnet152": USUAL,
    "densenet121": USUAL,
    "squeezenet1_0": USUAL,
    "mobilenet_v2": USUAL,
    "shufflenet_v2_x1_0": USUAL,
}
"""The 16 networks, and the shapes of their samples."""
_SHORT = {SERVERS: "servers", SHARDED: "sharded", TUNED_DDP: "DDP, best", DEAR: "DeAR, best"}
_WIDTH = 110
"""Columns of text, in which no network's name breaks."""
GPUS, SERVER_COUNT, SAMPLES_PER_GPU = 16, 8, 32
GBITS = (25.0, 10.0, 100.0)
"""Gigabits per second of every link in each direction."""


def transfer_study(
    networks: Sequence[str] = tuple(NETWORKS),
    *,
    gbits: Sequence[float] = GBITS,
    gpu: str = "a100-40",
    precision: Precision = "fp32",
) -> Iterator[TransferComparison]:
    """Yields the comparison of methods for every network and network speed; see the assumptions of this module.

    Args:
        networks: some of :data:`NETWORKS`.
        gbits: network speeds, in gigabits per second.
        gpu: GPU of the estimated layer times, see :func:`deeppool.estimate`.
        precision: precision of the estimates.
    """
    for network in networks:
        profile = estimate(network, NETWORKS[network], gpu=gpu, precision=precision, batch_sizes=[SAMPLES_PER_GPU])
        for speed in gbits:
            source = f"assumed: {speed:g} Gbit/s, 50 us"
            link = replace(ETHERNET_25G, bandwidth=speed * 1e9 / 8, source=source)
            cluster = Cluster(GPUS, f"{speed:g} Gbit/s", 1, link, link, None)
            yield compare_transfers(profile, cluster, GPUS * SAMPLES_PER_GPU, servers=SERVER_COUNT)


def study_table(compared: Sequence[TransferComparison]) -> str:
    """Formats a row per network, in a table each: iteration time, utilisation, and time of all transfers by method."""
    columns: dict[str, Callable[[TransferPlan], str]] = {
        "iteration": lambda plan: format_seconds(plan.iteration_time),
        "utilisation": lambda plan: f"{plan.utilisation:.0%}",
        "communication": lambda plan: format_seconds(plan.transfer_time),
    }
    tables: list[str | Table] = []
    for title, cell in columns.items():
        rows = table("network", "computing", *(_SHORT.get(each.method, each.method) for each in compared[0].methods))
        for one in compared:
            rows.add_row(one.model, format_seconds(one.compute_time), *(cell(each.plan) for each in one.methods))
        tables += [f"{title}, {one.cluster.name}", rows]
    return render(*tables, width=_WIDTH)
