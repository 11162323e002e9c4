"""Plans from the measured times of a run.

profile_correction  corrects a profile by measured times
replan              the best plan at measured times, and its gain
"""
