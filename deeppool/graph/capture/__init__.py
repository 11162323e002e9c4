"""nn.Module to LayerGraph, by torch.export.

capture            CapturedModel: the graph and its program
appended_loss      the loss as the last part of a program
export             options of torch.export
constants          folds what depends on no data
functionalize      removes in-place writes
grouping           operators to layers
blocks             residual blocks, transformer layers and the like, found by repetition
layer_records      layers as records
activation_memory  what the forward of a layer keeps for its backward
fake_tensors       a program on tensors without data
index_ranges       how many tokens or classes an integer input selects from
losses             outputs and targets to the mean loss
extract            some layers of a captured model as a module
coverage           what a graph holds of its model, and its warnings
"""
