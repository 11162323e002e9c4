"""Plans on a virtual clock.

replay    a plan → Simulation: iteration time and per-GPU timeline, with a background in the gaps
"""
