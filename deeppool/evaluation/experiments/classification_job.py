"""A training job on random images, for experiments that need only its times or its bits."""

import torch
from torch.utils.data import TensorDataset

from deeppool.training.training_job import TrainingJob

CLASSES, SAMPLES = 10, 128


def classification_job(model: str, input_shape: tuple[int, ...]) -> TrainingJob:
    """Returns a job of SGD with momentum on images that are drawn once.

    Args:
        model: name of a model.
        input_shape: shape of an image.
    """

    def dataset() -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(SAMPLES, *input_shape, generator=generator)
        return TensorDataset(images, torch.randint(CLASSES, (SAMPLES,), generator=generator))

    def optimizer(parameters: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    return TrainingJob(model=model, input_shape=input_shape, dataset=dataset, optimizer=optimizer)
