"""Records of runs and trainings, and functions for files of records.

run_record           RunRecord: a foreground alone and beside a background
cost_saved           CostSaved: what a background saves at a price of the GPU-hour
training_record      TrainingRecord: a training, update by update
compute_times        ComputeTimes: how long each rank computes before it meets the others
transfer_plan        TransferPlan: the transfers of an iteration, and their predicted times
measured_ways        MeasuredComparison: ways to train, measured by turns, and the lead of a technique over its controls
measured_transfers   MeasuredTransfers: methods of sending gradients, compared so
trials_record        TrialsRecord: hyper-parameter trials, and the best of them
field_changes        the fields in which any two records of one kind differ
run_comparison       what differs between two runs, and whether beyond noise
confidence_interval  95 % confidence intervals
files                save and load records of any kind
record_index         the records in a folder
"""
