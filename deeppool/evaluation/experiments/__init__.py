"""Experiments of single evaluation notebooks.

classification_job  a training job on random images (crossover)
half_and_half_plan  a plan with the same idle time on every machine (figure 11)
search_times        capture, pricing, search and explanation times side by side (table 3)
scenarios           cluster throughput in three scenarios (figure 9)
transfer_study      16 networks by every method of sending gradients (caramel)
"""
