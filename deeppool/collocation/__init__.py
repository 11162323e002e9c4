"""Background jobs in the gaps that a foreground leaves.

Of a measured run (``dp.launch``), one job beside every rank:

job_queue               BackgroundJob, and the queues in which jobs wait
background_placement    chooses where a background runs: in a process of its own or in a thread of the rank
collocated_processes    starts ranks, background jobs and spinners together
background_group        background jobs in processes of their own, and the work they have done
in_process_group        background jobs in the ranks' processes
spinner                 the process that keeps a core active, for the baseline
condition_results       results of the foreground by condition and by bound
sample_publisher        publishes live samples of a run

Of a training (``dp.train``), a queue of jobs:

supervisor              starts, watches and stops background jobs
job_process             the history of a job, and one process of it
containment             decides when a job must be stopped

In a process of its own:

background_process      the process of one background job
background_worker       trains the job
pieces                  splits a model into short stages
paced_launcher          delays each piece until its gate admits it

In the process of a rank:

collocated_rank         the process of such a rank
in_process_background   trains the job
captured_step           splits a training step into pieces that a GPU replays
piece_launcher          launches pieces on a stream when a gate admits them
foreground_phases       tracks which operator the foreground runs now

interference            measures the slowdown that collocated work causes
"""
