"""Utilities that every package may use: records as files, timelines, cancellation, and the state of live runs.

serialization  versioned JSON records, written atomically and validated when read
number_checks  whole and real numbers that a user gives
file_lock      lets one process at a time write to a folder
arguments      whether an argument of Python code has its type
pickling       what the processes of a run get, with its code
private_files  files that only this user may read
timeline       Span, Timeline
sharing        Sharing: how a background job shares a device with the foreground
cancellation   cancelling work from another thread
user_code      which lines of a traceback are the user's
interruption   an interrupted call is one line in a notebook
live_sample    one sample of a live run
run_control    changing the bound of a run while it runs
run_registry   the runs of this user: list them, stop them
"""
