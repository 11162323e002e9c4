"""Figures of single evaluation notebooks, as the DeepPool paper draws them, and of the other systems.

figures.workloads(graph, …)       what models consist of (table 1)
figures.utilisation(profile, …)   throughput lost at small batches (figure 4)
figures.layer_speedups(profile)   how much faster each layer gets when it is strong-scaled (figure 5)
figures.scenarios(found, …)       cluster throughput in three scenarios (figure 9)
figures.partitions(shared, …)     foreground speed-up against cluster throughput, a panel per foreground (figure 10)
figures.ladder(runs)              what each sharing mechanism adds (figure 11)
figures.stream_ladder(results)    the same in two streams of one device
figures.stream_priorities(found)  a short kernel behind a long queue, by the priority of its stream
figures.search_times(times)       how long searches for a plan take (table 3)
figures.tick_tock(runs, …)        throughput by memory, in one wave and in two (wavelet)
figures.wave_efficiency(curves)   speed-up of N waves of model parallelism, divided by N (wavelet)
figures.transfer_gains(compared)  iterations by other methods of sending gradients, over Caramel's (caramel)
figures.printed(figure, …)        lines for what a paper prints
nights                            figures of the records of nights and evaluations: what ran, moved, is near the paper
"""

from deeppool.evaluation.figures.ladder import ladder, stream_ladder
from deeppool.evaluation.figures.layer_speedups import layer_speedups
from deeppool.evaluation.figures.partitions import partitions
from deeppool.evaluation.figures.printed import printed
from deeppool.evaluation.figures.scenarios import scenarios
from deeppool.evaluation.figures.search_times import search_times
from deeppool.evaluation.figures.stream_priorities import stream_priorities
from deeppool.evaluation.figures.transfer_gains import transfer_gains
from deeppool.evaluation.figures.utilisation import utilisation
from deeppool.evaluation.figures.waves import tick_tock, wave_efficiency
from deeppool.evaluation.figures.workloads import workloads

__all__ = [
    "ladder",
    "layer_speedups",
    "partitions",
    "printed",
    "scenarios",
    "search_times",
    "stream_ladder",
    "stream_priorities",
    "tick_tock",
    "transfer_gains",
    "utilisation",
    "wave_efficiency",
    "workloads",
]
