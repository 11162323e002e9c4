"""Adapters for training loops of other libraries, whose gradients then travel by a plan of transfers.

transformers       use_transfers: a Trainer of transformers
lightning          TransferStrategy: a strategy of Lightning
stepped_optimizer  SteppedOptimizer: the optimizer that these libraries step
"""

from deeppool.graph.models.torchvision_operators import define_missing_operators

define_missing_operators()  # both libraries import torchvision
