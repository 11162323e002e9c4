"""Background jobs in the gaps that a foreground leaves.

Of a measured run (``dp.launch``), one job beside every rank:

job_queue               BackgroundJob, and the queues in which jobs wait
background_placement    chooses where a background runs: in a process of its own or in a thread of the rank
collocated_processes    starts ranks, background jobs and spinners together
background_jobs         switches them between training and resting, wherever they run, and counts their work
rank_channel            sends commands to jobs in the ranks' processes
spinners                keep the cores active, for the baseline
spinner                 the process of one
condition_results       results of the foreground by condition and by bound
sample_publisher        publishes live samples of a run

Of every background:

helper_processes        starts processes beside the ranks, receives their answers, leaves out those that end
background_training     its task, its stream and its steps
pieces                  splits a model into short stages
piece_launcher          delays each piece until its gate admits it

Of a training (``dp.train``), a queue of jobs:

trials                  Trials: hyper-parameter trials as such a queue
supervisor              starts, watches and stops background jobs
job_process             the history of a job, and one process of it
containment             decides when a job must be stopped

In a process of its own:

background_process      the process of one background job
background_worker       trains the job
cpu_sampler             finds when it had its core, for timelines

In the process of a rank:

collocated_rank         the process of such a rank
foreground_memory       keeps the memory of its iterations while a background is made
in_process_background   trains the job in a thread

interference            measures the slowdown that collocated work causes
"""
