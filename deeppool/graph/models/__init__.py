"""Models by name.

workloads              Workload: a named model, or package.module:callable
libraries              the models of torchvision and transformers
torchvision_operators  operators that a CPU build of torchvision lacks
"""
