"""A background job in the gaps that the foreground leaves.

background      the process of one background job
spinner         keeps a core awake, for the baseline
captured_step   a training step in pieces that a GPU repeats one by one
lane            a stream behind a gate: the background beside graphs on a GPU
neighbours      the background jobs of all ranks, and what they got done
"""
