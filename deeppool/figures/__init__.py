"""Records in, plotly figures out; nothing here shows or writes a figure by itself.

    figures.graph(graph, profile)          who reads whom, coloured by time, parameters or memory
    figures.batch_curves(profile, layers)  layer times over the per-GPU batch: measured, between, beyond
    figures.timeline(plan)                 what each GPU does when, one panel per timeline
    figures.timeline(run)                  the prediction above what was measured, on one time axis
    figures.layers(plan)                   GPUs, time and amplification of every layer
    figures.frontier(found, plan)          iteration time against GPU-seconds: efficient plans, this one, data parallel
    figures.collocation(run)               the foreground alone and collocated, and what the background harvested
    figures.live(run.samples)              a run under way: iterations against the level alone, background throughput
    figures.scaling(study)                 speed-ups over GPUs and network speeds, and the best batch
    figures.throughput(shared)             foreground speed-up against cluster throughput, beside static partitions
    figures.interference(measured)         the foreground beside every kind of background, as heat maps
    figures.training(record)               loss and time of every update of a training
    figures.trade_off(simulations or runs) ways of sharing a device: the foreground's loss, the background's gain
    figures.of(record)                     whichever of these a record's kind has
    figures.cluster(simulation)            a simulated cluster: whose the GPUs are over time, and the throughput
    figures.strategies(comparison)         a workload by every strategy: throughput and completion times
    figures.write_trace(path, timeline)    the same spans for https://ui.perfetto.dev

theme       one colour per span kind, the light and dark templates
labels      the words: provenance, units, GPU ranges
layered     where layers stand in a drawn graph
timeline_rows   what shares a row of a timeline, and what a figure of it has panels of

Every figure is a file of its name.
"""

from deeppool.figures.batch_curves import batch_curves
from deeppool.figures.cluster import cluster
from deeppool.figures.collocation import collocation
from deeppool.figures.frontier import frontier
from deeppool.figures.graph import graph
from deeppool.figures.interference import interference
from deeppool.figures.layers import layers
from deeppool.figures.live import live
from deeppool.figures.of import of
from deeppool.figures.scaling import scaling
from deeppool.figures.strategies import strategies
from deeppool.figures.throughput import throughput
from deeppool.figures.timeline import timeline
from deeppool.figures.trace import chrome_trace, write_trace
from deeppool.figures.trade_off import trade_off
from deeppool.figures.training import training

__all__ = [
    "batch_curves",
    "chrome_trace",
    "cluster",
    "collocation",
    "frontier",
    "graph",
    "interference",
    "layers",
    "live",
    "of",
    "scaling",
    "strategies",
    "throughput",
    "timeline",
    "trade_off",
    "training",
    "write_trace",
]
