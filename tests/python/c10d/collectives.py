"""One process of a job over `casync`: every collective of torch.distributed beside what it must give. Prints `done`.

Where DEVICE says cuda, with tensors there.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import casync.torch  # noqa: F401  # which registers the backend
import torch
import torch.distributed as dist

warnings.simplefilter("ignore")  # old names, which older programs use
torch.set_num_threads(1)
if "DEVICE" in os.environ:
    torch.set_default_device(os.environ["DEVICE"])
TORCH_ONLY_WAITS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)  # docs/torch_backend.md
dist.init_process_group(os.environ.get("BACKEND", "casync"))
RANK, SIZE = dist.get_rank(), dist.get_world_size()
TOTAL = SIZE * (SIZE - 1) / 2  # of all ranks


def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype)


def reduced(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> torch.Tensor:
    dist.all_reduce(tensor, op=op)
    return tensor


def refused(call: Callable[[], object], *texts: str) -> None:
    try:
        call()
    except NotImplementedError as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise AssertionError(f"not refused: {texts}")


def of_each(parts: list[torch.Tensor]) -> list[float]:
    assert all(bool((part == part.view(-1)[0]).all()) for part in parts)
    return [float(part.view(-1)[0]) for part in parts]


def reductions() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8):
        assert bool((reduced(full(RANK, 1000, dtype=dtype)) == TOTAL).all()), dtype
    assert bool((reduced(full(RANK, 10), dist.ReduceOp.AVG) == TOTAL / SIZE).all())
    assert bool((reduced(full(RANK, 10), dist.ReduceOp.MAX) == SIZE - 1).all())
    assert bool((reduced(full(RANK, 10), dist.ReduceOp.MIN) == 0).all())
    assert bool((reduced(full(2, 10), dist.ReduceOp.PRODUCT) == 2**SIZE).all())
    assert reduced(torch.tensor([RANK == 0, False, True])).tolist() == [True, False, True]
    assert reduced(torch.tensor([RANK == 0, False, True]), dist.ReduceOp.MIN).tolist() == [False, False, True]
    complexes = torch.complex(full(1, 3), full(RANK, 3))
    assert bool((reduced(complexes) == complex(SIZE, TOTAL)).all())
    turned = full(RANK, 3, 4).t()
    assert not turned.is_contiguous() and bool((reduced(turned) == TOTAL).all())
    assert reduced(torch.empty(0)).numel() == 0
    assert float(reduced(torch.tensor(1.0))) == SIZE
    one = full(1.0 + RANK, 3)
    dist.reduce(one, 1)
    assert bool((one == (TOTAL + SIZE if RANK == 1 else 1.0 + RANK)).all())
    refused(lambda: reduced(full(1, 3, dtype=torch.int32), dist.ReduceOp.BAND), "BAND", "gloo")
    refused(lambda: dist.reduce(complexes, 1, op=dist.ReduceOp.MAX), "complex", "gloo")


def moves() -> None:
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16):
        tensor = full(RANK == 1, 5, dtype=torch.float32).to(dtype)
        dist.broadcast(tensor, 1)
        assert bool((tensor == torch.ones(5).to(dtype)).all()), dtype
    gathered = [torch.empty(3) for _ in range(SIZE)]
    dist.all_gather(gathered, full(RANK, 3))
    assert of_each(gathered) == list(range(SIZE))
    if hasattr(dist, "all_gather_coalesced"):
        each = [[torch.empty(2), torch.empty(3)] for _ in range(SIZE)]
        dist.all_gather_coalesced(each, [full(RANK, 2), full(10 * RANK, 3)])
        assert [of_each(of_rank) for of_rank in each] == [[rank, 10 * rank] for rank in range(SIZE)]
    whole = torch.empty(3 * SIZE)
    dist.all_gather_into_tensor(whole, full(RANK, 3))
    assert of_each(list(whole.split(3))) == list(range(SIZE))
    mine = torch.empty(4)
    dist.reduce_scatter_tensor(mine, torch.arange(4.0 * SIZE))
    assert torch.equal(mine, SIZE * torch.arange(4.0 * RANK, 4.0 * RANK + 4))
    dist.reduce_scatter(mine, list(torch.arange(4.0 * SIZE).split(4)), op=dist.ReduceOp.AVG)
    assert torch.equal(mine, torch.arange(4.0 * RANK, 4.0 * RANK + 4))
    turned = torch.empty(2 * SIZE)
    dist.all_to_all_single(turned, full(RANK, 2 * SIZE))
    assert of_each(list(turned.split(2))) == list(range(SIZE))
    uneven = torch.empty(SIZE * (RANK + 1))  # rank r gets r + 1 from each
    dist.all_to_all_single(uneven, full(RANK, SIZE * (SIZE + 1) // 2), [RANK + 1] * SIZE, list(range(1, SIZE + 1)))
    assert of_each(list(uneven.split(RANK + 1))) == list(range(SIZE))
    parts = [torch.empty(2) for _ in range(SIZE)]
    dist.all_to_all(parts, [full(10 * RANK + to, 2) for to in range(SIZE)])
    assert of_each(parts) == [10 * source + RANK for source in range(SIZE)]
    parts = [torch.empty(2) for _ in range(SIZE)]
    dist.gather(full(RANK, 2), parts if RANK == 1 else None, dst=1)
    assert RANK != 1 or of_each(parts) == list(range(SIZE))
    part = torch.empty(2)
    dist.scatter(part, [full(to, 2) for to in range(SIZE)] if RANK == 1 else None, src=1)
    assert of_each([part]) == [RANK]
    dist.barrier()
    refused(lambda: dist.send(full(1, 1), (RANK + 1) % SIZE), "send and recv", "gloo")


def objects() -> None:
    told = [{"a": RANK}, "x" * (RANK + 1)] if RANK == 0 else [None, None]
    dist.broadcast_object_list(told, 0)
    assert told == [{"a": 0}, "x"]
    each: list[object] = [None] * SIZE
    dist.all_gather_object(each, {"rank": RANK, "text": "y" * 100 * RANK})
    assert each == [{"rank": rank, "text": "y" * 100 * rank} for rank in range(SIZE)]


def groups() -> None:
    some = dist.new_group([0, SIZE - 1])
    if RANK in (0, SIZE - 1):
        tensor = full(1, 3)
        dist.all_reduce(tensor, group=some)
        assert of_each([tensor]) == [2]
    works = [dist.all_reduce(full(1, 100 + i % 3), async_op=True) for i in range(100)]
    for work in works:
        assert work.wait() and work.get_future().done()
        assert work.is_completed() != TORCH_ONLY_WAITS
    tensor = full(1, 7)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert of_each(future.wait()) == [SIZE]


def main() -> None:
    for part in (reductions, moves, objects, groups):
        part()
    print("done", flush=True)
    if "LEAVE" not in os.environ:
        dist.destroy_process_group()


main()
