"""Costs of a layer on some GPUs: computing, moving samples, synchronising gradients.

communication   network models: seconds to reshard and to all-reduce
schedules       schedules of collectives, on the links of a cluster
amplification   GPU-seconds against one GPU
table           every cost that the search needs, as arrays
"""
