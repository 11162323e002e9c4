"""Plans from the measured times of a run.

profile_correction  corrects a profile by measured times
fewer_gpus          the best plan for the GPUs that are left
replan              the best plan at measured times, and its gain
"""
