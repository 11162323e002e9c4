"""Several data-parallel jobs on the same ranks: one computes while the gradients of the others are in flight.

(Luo et al., "CrossoverScheduler: Overlapping Multiple Distributed Training Applications in a Crossover Manner", 2021)

order           the turns of the jobs: settle the step before, compute the next one
round_time      predicted time of a round, of whole trainings, and of the same jobs in other orders
memory          what jobs need beside each other, and whether it fits
pairing         which jobs to run together
measure         what a step of each job costs
record          records of a training and of its jobs
measurements    turns of all ranks → round times, costs and spans
transfer_queue  all-reduces of all jobs, one at a time and in order, beside the computing
job_on_rank     one job's share on one rank
rank            a rank of several jobs, and its commands
worker          entry point of a rank's process
ranks           starts and commands the ranks
orders          a rank's orders: crossover, one after the other, data parallel, shifted in time
compared_rank   a rank that trains in several orders
comparison      measures the crossover and other orders
comparison_record  the record of that
named_jobs      the jobs by name, for records and folders, and the patterns that sum their gradients
scheduler       CrossoverScheduler: trains, checkpoints, lets jobs join and leave
"""
