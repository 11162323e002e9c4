"""Costs of kernels on this machine's device, measured in about a minute.

calibrate   dp.calibrate: measures the networks and fits their kernels' costs
networks    the networks: layers of drawn sizes
fit         costs of families of kernels from times of layers
"""
