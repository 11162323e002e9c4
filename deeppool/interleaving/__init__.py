"""Orders of the training step by which several jobs, or several replicas of one, fill each other's gaps.

crossover  jobs on the same ranks: one computes while the gradients of the others are in flight
wavelet    waves of one training: the forward of one runs in the backward of another
"""
