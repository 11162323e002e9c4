"""nn.Module to LayerGraph, by torch.export.

capture            CapturedModel: the graph and its program
warm_up            a capture in advance, for processes that are forked afterwards
one_at_a_time      one export at a time among the threads of a process
regions            inlines what runs under no_grad or autocast
python_state       checks code that changes values of its modules and reads them again
named_variables    finds the variables outside of modules that a forward names
random_numbers     refuses random numbers that a graph would draw otherwise
custom_gradients   checks code with autograd functions of its own
appended_loss      appends the loss to a program
mean_over_samples  checks that a loss is the mean over its samples
export             options of torch.export
constants          folds what depends on no data
functionalize      removes in-place writes
sample_independence  refuses models whose samples depend on each other
sample_layout      dimension of a tensor that counts samples
sample_rules       operators that keep samples apart
sample_trials      other operators, on random numbers
grouping           operators to layers
blocks             residual blocks, transformer layers and the like, found by repetition
batch_sizes        sizes that a layer computes from the batch
batch_paths        checks code that takes another path at another batch
layer_records      groups of operators to Layer records
activation_memory  bytes that the forward of a layer saves for its backward
fake_tensors       runs a program on tensors without data
index_ranges       value ranges of integer inputs, such as tokens
losses             default losses
placement          moves a captured model to a device
extract            some layers of a captured model as a module
coverage           share of a model that its graph covers, and warnings
"""
