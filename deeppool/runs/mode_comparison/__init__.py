"""Comparison of training modes under load imbalance: synchronous, straggler-aware, majority, solo.

compare        compare_modes: trains one task by each mode and seed, on the same ranks
virtual_clock  one training whose gradients are computed and whose times are simulated
record         ModeComparison: times, losses and accuracies, with confidence intervals
tasks          what is trained: a hyperplane regression, and a small ResNet on images of digits
digits         images of digits, drawn from the fonts that ship with JupyterLab
rank           the process of one rank
"""
