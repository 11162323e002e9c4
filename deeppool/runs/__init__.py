"""Live runs and trainings: started, measured, and returned as records.

launch                    dp.launch: runs a plan and measures it alone and collocated with a background job
interleaved_measurement   measures the conditions of a run in interleaved rounds
launch_record             builds the record of a measured run
train                     dp.train: trains a model by a plan to the last update
restart_loop              drives the ranks of a training and starts them again after a fault
elastic_ranks             GPUs of a training that may go on with fewer, and the plan for so many
training_state            settings of a training, and its progress
train_record              builds the record of a training
mode_comparison           training modes under load imbalance, on the same ranks
technique_comparison      dp.compare_techniques: techniques and baselines on one workload, by turns
handle                    dp.start: a handle on a call that runs in a thread
"""
