"""A background job in the gaps that the foreground leaves.

background   the process of one background job
spinner      keeps a core awake, for the baseline
lane         a stream behind a gate: the background beside graphs on a GPU
neighbours   the background jobs of all ranks, and what they got done
"""
