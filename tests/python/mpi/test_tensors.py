"""Tensors as only PyTorch has them: parameters, and other orders in memory."""

import casync.torch as hvd
import torch


def test_channels_last_in_place(rank, size):
    values = torch.arange(48.0).reshape(2, 3, 4, 2)
    tensor = (values + rank).to(memory_format=torch.channels_last)
    assert hvd.allreduce_(tensor) is tensor
    assert torch.allclose(tensor, values + (size - 1) / 2)
    assert tensor.is_contiguous(memory_format=torch.channels_last)


def test_a_parameter_is_broadcast_in_place_and_stays_one(rank):
    parameter = torch.nn.Parameter(torch.full((5,), float(rank)))
    assert hvd.broadcast_(parameter, 0) is parameter
    assert (parameter == 0).all() and parameter.is_leaf and parameter.requires_grad


def test_part_of_a_turned_tensor_is_broadcast_in_place(rank):
    view = torch.full((4, 6), float(rank)).t()[::2]
    hvd.synchronize(hvd.broadcast_async_(view, 0))
    assert (view == 0).all()


def test_what_objects_hold_may_be_tensors(rank, size):
    everything = hvd.allgather_object({"weight": torch.full((rank, 2), float(rank)), "half": torch.ones(1).bfloat16()})
    for r, item in enumerate(everything):
        assert torch.equal(item["weight"], torch.full((r, 2), float(r))) and item["half"].dtype == torch.bfloat16
