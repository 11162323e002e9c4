"""GPUs, nodes and the network between them.

cluster           Cluster, Link
measured_network  MeasuredNetwork: transfer and all-reduce times from a benchmark
"""
