"""Links and all-reduces between ranks, measured.

measure   dp.measure_network: ranks to a Cluster
patterns  the transfer patterns that each rank runs
rank      the process of one rank
"""
