"""Models as static graphs of layers.

layer        Layer, LayerGraph: plain records, no torch
workloads    named models, and ``package.module:callable`` for the user's own
capture      nn.Module → CapturedModel (LayerGraph + program), by torch.export
in_place     removes in-place writes from a program
grouping     operators → layers
describe     layers → records
fakes        a program on tensors without data
saved        what a layer's forward keeps for its backward
extract      some layers of a captured model as a module of their own
regions      chains, branches and joins of a layer graph
losses       outputs and targets → the mean loss that capture appends
synthetic    a learnable task for any classifier
"""
