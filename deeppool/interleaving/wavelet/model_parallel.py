"""Model-parallel training in waves: partitions of the model rotate over the ranks, each of which trains another batch.

    dist.init_process_group("gloo")
    with dp.WaveletModelParallel(job, global_batch=32) as training:
        for step in range(1000):
            loss = training.step(lambda samples: batch_of(step, samples))   # samples of the global batch
            training.save("checkpoints")      # training.resume("checkpoints") continues, on any number of ranks
        weights = training.state_dict()

In phase k of the forward all ranks compute partition k, each on its own shard of the global batch; the activations then
move on to the next rank, and the weights of the next partition come from the rank that keeps them while this one is
computed. The backward goes the other way, and after each of its phases the gradients of the partition are summed over
the ranks. The rank that keeps a partition updates it. An update is that of synchronous SGD on the global batch. Weights
that are not trained lie on all ranks.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from deeppool.base.arguments import typed
from deeppool.base.number_checks import shown, whole_number
from deeppool.collectives.buckets import ONE_BUCKET
from deeppool.device.find import device_of
from deeppool.device.kinds import check_precision
from deeppool.device.protocol import Precision
from deeppool.errors import DeeppoolError, InvalidValueError, RunError
from deeppool.execution import checkpoint
from deeppool.execution.checkpoint_folder import CheckpointFolder
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.span_recorder import RawSpan
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.placement import place_model
from deeppool.interleaving.wavelet.rotation import partitions, rotated_stages
from deeppool.interleaving.wavelet.weight_stream import WeightStream
from deeppool.training.bucket import Bucket
from deeppool.training.step import Batch
from deeppool.training.training_job import TrainingJob


class WaveletModelParallel:
    """One rank of model-parallel training in waves, in processes that have joined torch.distributed."""

    @typed
    def __init__(
        self,
        job: TrainingJob,
        *,
        global_batch: int,
        waves: int | None = None,
        parts: tuple[tuple[int, ...], ...] | None = None,
        place: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        """Captures the model and makes this rank's share; all ranks call it, with the same arguments.

        Args:
            job: model, loss and rule; its dataset is not read.
            global_batch: samples of an update, over all waves.
            waves: batches in progress at the same time, each a shard of the global batch; 1 is plain model
                parallelism. Default: as many as there are ranks; :func:`deeppool.waves_that_fit` says how many fit.
            parts: layers of each partition. Default: equal shares of what the forward saves for the backward.
            place: device of this rank.
            precision: precision of products and convolutions.

        Raises:
            InvalidValueError: a number out of range, or a rule or a model that partitions cannot follow.
        """
        check_precision(precision)
        place, global_batch = _torch_device(place), whole_number("global_batch", global_batch)
        captured = job.capture()
        if not isinstance(job.model, str):
            # Its weights come and go, and those of the caller's own model stay.
            captured = captured.copy()
        captured = place_model(captured, place)
        device = device_of(place)
        communicator, self._global_batch = ProcessGroup(device), global_batch
        parts = parts or partitions(captured.graph, communicator.ranks)
        stages = rotated_stages(parts, communicator.ranks if waves is None else waves, global_batch)
        _check(job, captured, stages, communicator.ranks, device.kind)
        self.trainer = Trainer(captured, stages, communicator, job, precision, buckets=ONE_BUCKET, replay_graphs=False)
        """This rank's parts, their step and its spans."""
        # A rank has gradients of the partitions that it keeps.
        self.trainer.update.complete = False
        named = self.trainer.parameters
        self._weights = [
            WeightStream(
                [named[name] for name in _names(captured, stage)], stage.layout.gpus, communicator.rank, device
            )
            for stage in stages
        ]
        self._mine = [number for number, weights in enumerate(self._weights) if weights.uses]

    def step(self, batch: Batch) -> float:
        """Makes one update; returns this rank's part of the mean loss.

        Args:
            batch: returns inputs and targets of some samples of the global batch: of the first partition's shard on
                this rank, and of the last one's.
        """
        self.trainer.recorded = []
        step = self.trainer.step
        step.compute([batch], self._after_backward, self._before_forward, self._turn)
        buckets = step.pending()
        if step.rule.needs_norm:
            step.finish_sync()
        for bucket in buckets:
            step.finish_sync(bucket)
            self._leave_to_owner(bucket)
        if step.rule.needs_norm:
            step.update()
        else:
            for bucket in buckets:
                step.update(bucket)
        return step.loss()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the whole model's state, as ``model.state_dict()``, on the ranks that compute every partition.

        All ranks call it. With fewer waves than ranks, a rank has the state of its own partitions alone.
        """
        found: dict[str, torch.Tensor] = {}
        with self._all_weights():
            for key, name in self.trainer.state_dict_names.items():
                value = self.trainer.state.get(name)
                if value is not None and value.untyped_storage().nbytes():
                    found[key] = value.detach().clone()
        return found

    def save(self, folder: str | os.PathLike[str], *, keep: int = 2) -> Path:
        """Writes a checkpoint, which any number of ranks, and a training by any plan, can continue; all ranks call it.

        Args:
            folder: folder of the checkpoints, which all ranks share.
            keep: number of checkpoints to keep.

        Raises:
            RunError: a weight is NaN or infinite, or another rank failed.
            DocumentError: it cannot be written.
        """
        checkpoints, updates = self._checkpoints(folder, keep), self.trainer.step.iterations
        first = self.trainer.rank == 0
        partial = on_all_ranks(lambda: checkpoint.begin(Path(folder), updates) if first else None)[0]
        assert partial is not None
        shards = on_all_ranks(lambda: checkpoint.save_shard(self.trainer, partial))
        written = on_all_ranks(lambda: checkpoints.seal(partial, shards, updates) if first else None)[0]
        assert written is not None
        return written

    def resume(self, folder: str | os.PathLike[str]) -> int:
        """Restores the latest checkpoint of a folder; returns its updates, 0 if there is none; all ranks call it.

        Raises:
            InvalidValueError: it is of another training.
            DocumentError: it is damaged.
            RunError: the ranks find different ones, or another rank failed.
        """
        checkpoints = self._checkpoints(folder)
        every = on_all_ranks(checkpoints.find_resumable)
        found = every[self.trainer.rank]
        made = [0 if each is None else each[1] for each in every]
        if len(set(made)) > 1:
            raise RunError(
                f"the ranks find checkpoints after {', '.join(map(str, made))} updates in {folder} (give a folder that "
                "all of them share)"
            )
        if found is None:
            return 0
        with self._all_weights():
            on_all_ranks(lambda: checkpoint.load(self.trainer, found[0]))
        if (optimizer := self.trainer.update.optimizer) is not None:
            for parameter in [each for each in optimizer.state if not each.untyped_storage().nbytes()]:
                # The rank that keeps a weight updates it.
                del optimizer.state[parameter]
        return found[1]

    def _checkpoints(self, folder: str | os.PathLike[str], keep: int = 2) -> CheckpointFolder:
        graph = self.trainer.captured.graph
        return CheckpointFolder(
            path=Path(folder),
            every=1,
            keep=keep,
            model=graph.model,
            graph_fingerprint=graph.fingerprint,
            global_batch=self._global_batch,
        )

    @contextmanager
    def _all_weights(self) -> Iterator[None]:
        """Gets the weights of all partitions that this rank computes with, for the block; all ranks enter it."""
        for weights in self._weights:
            if weights.uses:
                weights.wait()
        yield
        for weights in self._weights:
            weights.release()

    @property
    def spans(self) -> list[RawSpan]:
        """Spans of the last step."""
        return self.trainer.spans

    def close(self) -> None:
        """Ends the groups; all ranks call it."""
        for weights in self._weights:
            weights.close()
        self.trainer.close()

    def __enter__(self) -> "WaveletModelParallel":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def _before_forward(self, part: int) -> None:
        if part > 0 and self._weights[part - 1].uses:
            self._weights[part - 1].release()
        if self._weights[part].uses:
            with self.trainer.span("reshard", part, "weights"):
                self._weights[part].wait()
        if part + 1 < len(self._weights) and self._weights[part + 1].uses:
            self._weights[part + 1].fetch()

    def _turn(self) -> None:
        """Gets what the first backward of this rank needs."""
        self._await_backward(len(self._mine) - 1)

    def _await_backward(self, position: int) -> None:
        """Waits for the weights of a backward of this rank, and starts to send those of the next one."""
        if position >= 0:
            with self.trainer.span("reshard", self._mine[position], "weights"):
                self._weights[self._mine[position]].wait()
        if position > 0:
            self._weights[self._mine[position - 1]].fetch()

    def _after_backward(self, bucket: Bucket) -> None:
        self.trainer.step.start_sync(bucket)
        if bucket is self.trainer.step.buckets_of(bucket.part)[-1]:
            self._weights[bucket.part].release()
            self._await_backward(self._mine.index(bucket.part) - 1)

    def _leave_to_owner(self, bucket: Bucket) -> None:
        """Frees the gradients of a partition that another rank keeps and updates."""
        if not self._weights[bucket.part].owns:
            for parameter in bucket.parameters:
                parameter.grad = None


Result = TypeVar("Result")


def on_all_ranks(work: Callable[[], Result]) -> list[Result]:
    """Does some work on this rank; returns the results of all, which call it together.

    Raises:
        RunError: another rank failed. This rank's own error is raised as it is.
    """
    found: list[tuple[Any, str | None]] = [(None, None)] * dist.get_world_size()
    error, mine = None, cast(tuple[Any, str | None], (None, None))
    try:
        mine = (work(), None)
    except Exception as caught:  # of any kind: the others wait for what this rank found
        told = str(caught) if isinstance(caught, DeeppoolError) else f"{type(caught).__name__}: {caught}"
        mine, error = (None, told), caught
    dist.all_gather_object(found, mine)
    if error is not None:
        raise error
    for rank, (_, failure) in enumerate(found):
        if failure is not None:
            raise RunError(f"rank {rank}: {failure}")
    return [result for result, _ in found]


def _torch_device(place: torch.device | str) -> torch.device:
    try:
        return torch.device(place)
    except RuntimeError:
        raise InvalidValueError(f"place must be a device of torch, such as cuda:0, got {shown(place)}") from None


def _names(captured: CapturedModel, stage: Stage) -> list[str]:
    return list(dict.fromkeys(name for layer in stage.layers for name in captured.graph.layers[layer].parameters))


def _check(job: TrainingJob, captured: CapturedModel, stages: tuple[Stage, ...], ranks: int, device: str) -> None:
    if len(stages) != ranks:
        raise InvalidValueError(f"{ranks} ranks need as many partitions, got {len(stages)}")
    if device.startswith("emulated"):
        raise InvalidValueError("an emulated device cannot give memory of weights back (use cpu or cuda)")
    if job.accumulation > 1 or job.synchronise_batch_norm:
        raise InvalidValueError(
            "partitions that rotate take accumulation 1 and BatchNorm of each shard, got accumulation "
            f"{job.accumulation} and synchronise_batch_norm {job.synchronise_batch_norm}"
        )
    trained = {name for name, value in captured.program.named_parameters() if value.requires_grad}
    seen: set[str] = set()
    for stage in stages:
        names = _names(captured, stage)
        if not trained.intersection(names):
            raise InvalidValueError(f"{stage.name} has no parameters to train (give other parts)")
        if shared := seen.intersection(names):
            raise InvalidValueError(
                f"'{min(shared)}' is used in two partitions, between which no weight can be tied (give parts that keep "
                "its layers together)"
            )
        seen.update(names)
