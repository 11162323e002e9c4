"""Records in, plotly figures out; nothing here shows or writes a figure by itself.

    figures.timeline(plan)                 what each GPU does when, one panel per timeline
    figures.timeline(run)                  the prediction above what was measured, on one time axis
    figures.layers(plan)                   GPUs, time and amplification of every layer
    figures.collocation(run)               the foreground alone and collocated, and what the background harvested
    figures.scaling(study)                 speed-ups over GPUs and network speeds, and the best batch
    figures.throughput(shared)             foreground speed-up against cluster throughput, beside static partitions
    figures.interference(measured)         the foreground beside every kind of background, as heat maps
    figures.trade_off(simulations)         ways of sharing a device: the foreground's loss, the background's gain
    figures.cluster(simulation)            a simulated cluster: whose the GPUs are over time, and the throughput
    figures.strategies(comparison)         a workload by every strategy: throughput and completion times
    figures.write_trace(path, timeline)    the same spans for https://ui.perfetto.dev

theme       one colour per span kind, the light and dark templates
labels      the words: provenance, units, GPU ranges
timeline    layers   collocation   interference   scaling   throughput   trade_off   cluster   strategies   trace
"""

from deeppool.figures.cluster import cluster
from deeppool.figures.collocation import collocation
from deeppool.figures.interference import interference
from deeppool.figures.layers import layers
from deeppool.figures.scaling import scaling
from deeppool.figures.strategies import strategies
from deeppool.figures.throughput import throughput
from deeppool.figures.timeline import timeline
from deeppool.figures.trace import chrome_trace, write_trace
from deeppool.figures.trade_off import trade_off

__all__ = [
    "chrome_trace",
    "cluster",
    "collocation",
    "interference",
    "layers",
    "scaling",
    "strategies",
    "throughput",
    "timeline",
    "trade_off",
    "write_trace",
]
