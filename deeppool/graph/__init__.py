"""Models as static graphs of layers.

layer        Layer, LayerGraph, Input: plain records, no torch
workloads    models by name, and ``package.module:callable`` for the user's own
model_libraries   the names of torchvision and transformers
inputs       shapes and dtypes as users give them → Input records
shapes       shapes as people write them
capture      nn.Module → CapturedModel (LayerGraph + program), by torch.export
export       how models and losses are given to that
appended_loss   the loss as the last part of a program
constants    computes once what depends on no data
in_place     removes in-place writes from a program
grouping     operators → layers: single ones, modules, or blocks
blocks       finds residual blocks, transformer layers and the like by what repeats
describe     layers → records
coverage     what a graph holds of its model, and what to be careful of
fakes        a program on tensors without data
saved        what a layer's forward keeps for its backward
extract      some layers of a captured model as a module of their own
indices      how many tokens or classes an integer tensor picks from
regions      chains, branches and joins of a layer graph
losses       outputs and targets → the mean loss that capture appends
synthetic    a learnable task for any classifier
"""
