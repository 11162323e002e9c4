"""Data-parallel training of any model and optimizer by a plan of transfers, in processes that the user starts.

scheduled_training  ScheduledTraining: the model's hooks, its transfers and its updates
iteration_times     when each module of a model computes, and each gradient is ready
planned_run         performs the plan: packs and sends in backward, updates before the next use
measured_timeline   a measured iteration of one rank
fresh_parameters    parameters that are complete whenever code reads them
flat_batch          the gradients of a transfer in one buffer
deferred_optimizer  updates of some parameters at a time
baselines           methods to compare with: DeAR, parameter servers
measure             dp.measure_transfers: methods on the same ranks, by turns
compared_replica    one rank of it
compared_methods    the methods, as trainings of a rank
"""
