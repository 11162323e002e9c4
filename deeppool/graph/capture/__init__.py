"""nn.Module to LayerGraph, by torch.export.

capture            CapturedModel: the graph and its program
appended_loss      appends the loss to a program
export             options of torch.export
constants          folds what depends on no data
functionalize      removes in-place writes
grouping           operators to layers
blocks             residual blocks, transformer layers and the like, found by repetition
layer_records      groups of operators to Layer records
activation_memory  bytes that the forward of a layer saves for its backward
fake_tensors       runs a program on tensors without data
index_ranges       value ranges of integer inputs, such as tokens
losses             default losses
extract            some layers of a captured model as a module
coverage           share of a model that its graph covers, and warnings
"""
