"""Costs of a layer on some GPUs: computing, moving samples, synchronising gradients.

communication   network models: seconds to reshard and to all-reduce
amplification   GPU-seconds against one GPU
table           every cost that the search needs, as arrays
"""
