"""Plotly figures of records; no function displays or writes a figure, but those named write.

    figures.graph(graph, profile)          the layer graph, coloured by time, parameters or memory
    figures.batch_curves(profile, layers)  layer times over the per-GPU batch: measured, interpolated, extrapolated
    figures.timeline(plan)                 activity of each GPU over time, one panel per timeline
    figures.timeline(run)                  the predicted timeline above the measured one, on one time axis
    figures.layers(plan)                   GPUs, time and amplification of every layer
    figures.plan_graph(plan)               GPUs and amplification on the model's graph, by module where it is deep
    figures.alternatives(alternatives)     why a layer got its GPUs: times and amplification of the other counts
    figures.frontier(found, plan)          iteration time against GPU-seconds: efficient plans, this one, data parallel
    figures.collocation(run)               foreground iteration times alone and collocated, and background harvest
    figures.live(run.samples)              a run in progress: iteration times, bound, background throughput
    figures.advice(found)                  what each technique gains over data parallelism
    figures.schedule(ring(4))              a collective's transfers from rank to rank, in rounds or priced on a cluster
    figures.scaling(study)                 speed-ups over GPUs and network speeds, and the best batch
    figures.throughput(shared)             foreground speed-up against cluster throughput, with static partitions
    figures.interference(measured)         foreground throughput next to every kind of background, as heat maps
    figures.training(record)               loss and time of every update of a training
    figures.trade_off(simulations or runs) foreground slowdown against background harvest for ways of sharing a device
    figures.crossover(record)              jobs that cross over: computing and transfers of every rank
    figures.crossover_gain(comparisons)    its gain over other orders, by communication / computing
    figures.loss_over_time(trainings)      loss and accuracy of training modes under load imbalance, over time
    figures.changes(comparison)            what changed between plans, runs or profiles, or from a run to its simulation
    figures.network(cluster)               seconds of an all-reduce over its bytes: measured, and from the links
    figures.roofline(sheet)                what a GPU's data sheet allows, by precision
    figures.kernel_costs(calibration)      what kernels cost on a device
    figures.steps(steps_to_accuracy)       steps to the target accuracy over the global batch
    figures.workload(trace)                when the jobs of a trace arrive, and the GPUs they ask for
    figures.job_progress(status)           jobs of a Ray cluster: progress, state, GPUs
    figures.pairing(pairing)               groups of jobs that cross over: computing and communication
    figures.collocated_gpus(simulated)     slowdown and harvest on each GPU of a plan with a background job
    figures.telemetry(telemetry)           use of GPUs, cores and memory over time
    figures.trials(trials)                 final losses of the configurations of one job
    figures.of(record)                     the default figure of any record
    figures.ways(record)                   ways to train one model: what each gains over the fastest control
    figures.transfers(comparison)          an iteration by every method of sending gradients: computing and waiting
    figures.cluster(simulation)            a simulated cluster: jobs on GPUs over time, and throughput
    figures.strategies(comparison)         throughput and completion times of a workload under every strategy
    figures.write_trace(path, timeline)    the timeline as a trace file for https://ui.perfetto.dev
    figures.write_model_explorer(path, plan)   the plan's graph and node data for Google's Model Explorer

theme           one colour per span kind, the light and dark templates
page_width      texts wrapped to the width of a page
formatting      provenance, units, GPU ranges and shortened names
graph_canvas    a drawn graph in pixels: nodes, edges and labels
graph_layout    positions of layers in a drawn graph
module_groups   consecutive layers of one module as one node
timeline_rows   rows and panels of a timeline
model_explorer  write_model_explorer: a plan in the formats of Google's Model Explorer
record_figure   the default figure of any record
record_view     one record, or two compared, as a figure and a text
record_page     records as an HTML page

Every figure is a file of its name.
"""

from deeppool.figures.advice import advice
from deeppool.figures.alternatives import alternatives
from deeppool.figures.batch_curves import batch_curves
from deeppool.figures.changes import changes
from deeppool.figures.cluster import cluster
from deeppool.figures.collocated_gpus import collocated_gpus
from deeppool.figures.collocation import collocation
from deeppool.figures.crossover import crossover
from deeppool.figures.crossover_gain import crossover_gain
from deeppool.figures.frontier import frontier
from deeppool.figures.graph import graph
from deeppool.figures.interference import interference
from deeppool.figures.job_progress import job_progress
from deeppool.figures.kernel_costs import kernel_costs
from deeppool.figures.layers import layers
from deeppool.figures.live import live
from deeppool.figures.loss_over_time import loss_over_time
from deeppool.figures.model_explorer import write_model_explorer
from deeppool.figures.network import network
from deeppool.figures.pairing import pairing
from deeppool.figures.plan_graph import plan_graph
from deeppool.figures.record_figure import of
from deeppool.figures.roofline import roofline
from deeppool.figures.scaling import scaling
from deeppool.figures.schedule import schedule
from deeppool.figures.steps import steps
from deeppool.figures.strategies import strategies
from deeppool.figures.telemetry import telemetry
from deeppool.figures.throughput import throughput
from deeppool.figures.timeline import timeline
from deeppool.figures.trace import chrome_trace, write_trace
from deeppool.figures.trade_off import trade_off
from deeppool.figures.training import training
from deeppool.figures.transfers import transfers
from deeppool.figures.trials import trials
from deeppool.figures.ways import ways
from deeppool.figures.workload import workload

__all__ = [
    "advice",
    "alternatives",
    "batch_curves",
    "changes",
    "chrome_trace",
    "cluster",
    "collocated_gpus",
    "collocation",
    "crossover",
    "crossover_gain",
    "frontier",
    "graph",
    "interference",
    "job_progress",
    "kernel_costs",
    "layers",
    "live",
    "loss_over_time",
    "network",
    "of",
    "pairing",
    "plan_graph",
    "roofline",
    "scaling",
    "schedule",
    "steps",
    "strategies",
    "telemetry",
    "throughput",
    "timeline",
    "trade_off",
    "training",
    "transfers",
    "trials",
    "ways",
    "workload",
    "write_model_explorer",
    "write_trace",
]
