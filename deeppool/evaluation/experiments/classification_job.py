"""A training job on random images, for experiments that need only its times or its bits."""

import torch
from torch.utils.data import TensorDataset

from deeppool.training.training_job import TrainingJob

CLASSES = 10


def classification_job(model: str, input_shape: tuple[int, ...], *, samples: int = 128, seed: int = 0) -> TrainingJob:
    """Returns a job of SGD with momentum on images that are drawn once.

    Args:
        model: name of a model.
        input_shape: shape of an image.
        samples: images of an epoch.
        seed: seed of weights, images and their order.
    """

    def dataset() -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(samples, *input_shape, generator=generator)
        return TensorDataset(images, torch.randint(CLASSES, (samples,), generator=generator))

    def optimizer(parameters: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    return TrainingJob(model=model, input_shape=input_shape, dataset=dataset, optimizer=optimizer, seed=seed)
