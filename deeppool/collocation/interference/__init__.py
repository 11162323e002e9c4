"""Measures how two jobs on one device slow each other.

measure            measure_interference: all measurements → an Interference record
pair_rates         all pairs of kernels in turn, over several rounds → rates relative to running alone
cpu_bench          pairs of kernels in two processes, on one core or two
stream_bench       pairs of kernels in two streams of one process
kernel_worker      the process of a CPU bench
synthetic_kernels  kernels by arithmetic intensity and duration
waits              throughput of a background in a foreground's waits, by their length
training_worker    the process of a training that sleeps between layers
transfers          throughput of backgrounds inside all-reduces
all_reduce_worker  the process of a rank that all-reduces
"""
