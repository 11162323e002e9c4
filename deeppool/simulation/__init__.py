"""Simulations of plans, shared devices and clusters on a virtual clock.

device      one device shared by a foreground and a background, and measured interference between kernels
plan        one plan: iteration time and per-GPU timeline, under given conditions, with a background in the gaps
transfers   one data-parallel iteration by every method of sending gradients
cluster     a workload trace of many jobs, by every strategy
eager_training  how fast a training goes on with partial all-reduces, under any load imbalance
validation  a plan's simulation compared with a live run of it
"""
