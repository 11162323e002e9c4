"""Ways to send gradients, simulated for a model and a cluster.

compare     dp.compare_transfers: one iteration by every method
parts       a model's parts and gradients, from its profile
comparison  TransferComparison: the record
"""
