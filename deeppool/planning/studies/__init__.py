"""Studies over many plans.

scaling                weak, strong and batch-optimal scaling; scaling_record is its record
steps_to_accuracy      steps to a target accuracy as a function of the global batch
collocation_tradeoff   foreground speed-up against cluster throughput; tradeoff_record is its record
"""
