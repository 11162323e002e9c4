"""Records of runs and trainings, and functions for files of records.

run_record           RunRecord: a foreground alone and beside a background
training_record      TrainingRecord: a training, update by update
run_comparison       what differs between two runs, and whether beyond noise
confidence_interval  half-widths of 95 % confidence intervals
files                save and load records of any kind
record_index         the records in a folder
"""
