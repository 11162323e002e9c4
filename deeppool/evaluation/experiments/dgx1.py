"""The machines of Wavelet's evaluation: DGX-1 with eight V100 each, connected by Ethernet."""

from deeppool.cluster.cluster import ETHERNET_25G, Cluster, Link

NVLINK_V100 = Link(25e9, 5e-6, "Wavelet, section 4.1.1: an NVLink line, around 25 GB/s; latency estimated")


def dgx1(gpus: int, gpus_per_machine: int = 8) -> Cluster:
    """Returns V100s of DGX-1 machines; gradients of a machine are summed over one line of NVLink."""
    return Cluster(gpus, "dgx-1", gpus_per_machine, NVLINK_V100, ETHERNET_25G, 32e9)
