"""Plans from the times of a live run.

profile_correction  live times to a corrected profile
replan              a plan and live times to the better plan
"""
