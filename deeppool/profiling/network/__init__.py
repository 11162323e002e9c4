"""Links and all-reduces between ranks, measured.

gradient_copies  seconds in which a core copies gradients into a bucket
measure          dp.measure_network: a Cluster measured between ranks
patterns         the transfer patterns that each rank runs
rank             the process of one rank
"""
