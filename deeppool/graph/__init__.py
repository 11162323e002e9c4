"""Models as static graphs of layers.

layer            Layer, LayerGraph, Input: plain records, without torch
inputs           Input records from the shapes and dtypes that users give
shapes           parsing and formatting of input shapes
series_parallel  decomposition of a layer graph into chains, branches and other regions
capture          dp.capture: nn.Module to CapturedModel, by torch.export
models           named models, and package.module:callable
"""
