"""Runs a plan: one process per rank, connected by torch.distributed.

ranks               starts, commands and ends all ranks
joined_rank         a rank that has its device and has joined the others
comparison          … that train in several ways by turns
worker              entry point of a rank's process
rank                one rank: its trainer and its commands
training_task       what a process trains: model, rule and samples
trainer             one rank's share of every iteration, and the order of its steps
update_reports      what a rank reports of its updates, once it is known whether they were made
iteration_record    a rank's iterations in a row: times for the governor and for the record of the run
span_clock          times of spans, also where the device computes after its launches
span_recorder       spans of a rank, stamped once, and what runs now
stages              plan → stages: consecutive layers on the same GPUs
flow                activations and gradients between stages
exchange            performs a reshard's transfers
communicator        communication with the other ranks
emulated_rank       a communicator whose other ranks are emulated
replay_schedule     when a rank may start its work, by the plan's schedule
partial_all_reduce  all-reduces that do not wait for every rank
eager_sgd           settings of training with them
eager_driver        its iterations under a plan
eager_replica       its steps in a loop of the user's own
gradient_vector     all gradients of some parameters as one vector
load_imbalance      injected delays of ranks
transports          the memory, locks and processes under them
gradient_sync       sums gradients over the ranks that computed them
sync_method         what makes such drivers on all ranks
transfer_scheduler  sums them by a plan of transfers, up to the next forward
plan_trial          tries such plans by turns, and keeps the fastest on all ranks
data_parallel       … around any model and optimizer
batch_norm          statistics over all shards of a batch
checkpoint          a training's state on disk
checkpoint_folder   checkpoints of a training: which one to resume from, when to write the next one
foreground_control  limits of the background that shares a rank's device
failure_report      description of the exception that ends a rank
measurements        spans of all ranks in an iteration, stage times
typical_iteration   the iteration whose timeline is drawn
"""
