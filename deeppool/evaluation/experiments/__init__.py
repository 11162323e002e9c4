"""Experiments of single evaluation notebooks.

classification_job  a training job on random images (crossover)
dgx1                the machines of Wavelet's evaluation (wavelet)
half_and_half_plan  a plan with the same idle time on every machine (figure 11)
search_times        capture, pricing, search and explanation times side by side (table 3)
skewed_calls        latencies of partial all-reduces whose ranks arrive one after the other (eager-SGD)
skewed_rank         the process of one of these ranks
stream_foreground   a model, or a rank of a plan, timed by the device (figure 11)
stream_ladder       two jobs in two streams of a device, a mechanism more at a time (figure 11)
stream_priorities   a short kernel behind a long queue, at either priority
interference        measured on an emulated GPU, and what it leaves of a trade-off (figures 9 and 10)
scenarios           cluster throughput in three scenarios (figure 9)
tick_tock           one wave, two waves and one of twice the batch on an emulated GPU (wavelet)
transfer_study      16 networks by every method of sending gradients (caramel)
"""
