"""Links and all-reduces between ranks, measured.

measure   dp.measure_network: a Cluster measured between ranks
patterns  the transfer patterns that each rank runs
rank      the process of one rank
"""
