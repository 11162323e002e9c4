"""One rank of the tests of performed schedules; see test_perform.py."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.collectives.patterns.broadcast_tree import broadcast_tree
from deeppool.collectives.perform.performer import Performer
from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.device.cpu import CpuDevice
from deeppool.errors import InvalidValueError


def contribution(rank: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's own values, which any rank can compute."""
    generator = torch.Generator().manual_seed(1000 * rank + elements)
    if dtype.is_floating_point:
        return torch.randn(elements, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(-(2**40), 2**40, (elements,), generator=generator, dtype=dtype)


def join(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=ranks)


def sum_by_every_pattern(rank: int, ranks: int, counts: list[int], sizes: list[int], folder: str) -> None:
    """All-reduces over the first 1, 2, … ranks by every pattern."""
    join(rank, ranks, folder)
    for count in counts:
        group = dist.new_group(list(range(count)))
        if rank < count:
            performer = Performer(group)
            for name, make in ALL_REDUCES.items():
                for elements in sizes:
                    check_sums(performer, make(count, 2), group, elements, f"{name} of {count}, {elements} elements")
    dist.barrier()
    dist.destroy_process_group()


def check_sums(performer, schedule, group, elements: int, what: str) -> None:
    """Integers exactly; floats as close as their format allows, and the same bits on all ranks."""
    for dtype in (torch.int64, torch.float32):
        given = [contribution(rank, elements, dtype) for rank in range(performer.ranks)]
        own = given[performer.rank].clone()
        performer.perform(schedule, own)
        if dtype == torch.int64:
            assert torch.equal(own, torch.stack(given).sum(0)), what
            continue
        oracle = torch.stack(given).double()
        # Each of P - 1 additions rounds by half a unit in the last place of what it adds up.
        bound = performer.ranks * torch.finfo(dtype).eps * oracle.abs().sum(0)
        assert ((own.double() - oracle.sum(0)).abs() <= bound).all(), what
        everywhere = [torch.empty_like(own) for _ in given]
        dist.all_gather(everywhere, own, group=group)
        assert all(torch.equal(own.view(torch.int32), other.view(torch.int32)) for other in everywhere), what


def other_uses(rank: int, ranks: int, folder: str) -> None:
    """What does not depend on the pattern."""
    join(rank, ranks, folder)
    # A broadcast copies bits.
    performer = Performer()
    buffer = contribution(rank, 5, torch.float32)
    performer.perform(broadcast_tree(ranks), buffer)
    assert torch.equal(buffer, contribution(0, 5, torch.float32))
    # A dense tensor keeps its order of dimensions.
    image = torch.full((2, 3, 4, 5), rank + 1.0).contiguous(memory_format=torch.channels_last)
    performer.perform(ALL_REDUCES["halving-doubling"](ranks, 1), image)
    assert image.unique().tolist() == [ranks * (ranks + 1) / 2]
    assert not image.is_contiguous()
    with pytest.raises(InvalidValueError, match="gaps in its memory"):
        performer.perform(ALL_REDUCES["ring"](ranks, 1), torch.zeros(4, 4)[:, ::2])
    with pytest.raises(InvalidValueError, match=f"cannot run on {ranks} ranks"):
        performer.perform(ALL_REDUCES["ring"](ranks + 1, 1), torch.zeros(4))
    beside_other_calls(rank, ranks)
    dist.destroy_process_group()


def beside_other_calls(rank: int, ranks: int) -> None:
    """All-reduces by schedules, many at once, while this thread uses a process group of the same ranks."""
    members = list(range(ranks - 1))
    group, own_group = ScheduleGroup(CpuDevice(), members), dist.new_group(members)
    if rank in members:
        tensors = [contribution(rank, 1000 + i, torch.float64) for i in range(20)]
        patterns = [list(ALL_REDUCES.values())[i % len(ALL_REDUCES)](len(members), 1) for i in range(20)]
        works = []
        for tensor, schedule in zip(tensors, patterns, strict=True):
            works.append(group.all_reduce(tensor, schedule))
            library = torch.full((3,), rank + 1)
            dist.all_reduce(library, group=own_group)
            assert library.unique().tolist() == [sum(member + 1 for member in members)]
        for i, work in enumerate(works):
            work.wait()
            given = [contribution(member, 1000 + i, torch.float64) for member in members]
            torch.testing.assert_close(tensors[i], torch.stack(given).sum(0))
        failed = group.all_reduce(tensors[0], ALL_REDUCES["ring"](ranks, 1))
        with pytest.raises(InvalidValueError, match="cannot run on"):
            failed.wait()
    group.close()
    dist.barrier()
