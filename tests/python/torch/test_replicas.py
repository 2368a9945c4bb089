"""What is said about replicas that differ, and the numbers by which that is found."""

import pytest
import torch
from casync.torch.tensors import TENSORS

from casync.collectives.replicas import difference


def test_alike():
    assert difference({rank: {"a": 1, "b": 2} for rank in range(3)}) is None
    assert difference({0: {}, 1: {}}) is None


def test_the_first_parameter_and_all_its_ranks_are_named():
    text = difference({0: {"a": 1, "b": 2, "c": 3}, 1: {"a": 1, "b": 5, "c": 3}, 2: {"a": 1, "b": 5, "c": 4}})
    assert text is not None
    assert text.startswith("parameter b of ranks 1, 2 is not what it is on rank 0, and 1 more of 3 parameters differ")


def test_a_parameter_that_some_ranks_do_not_have_is_named():
    text = difference({1: {"a": 1}, 2: {"a": 1, "b": 2}, 3: {"a": 1}})
    assert text is not None
    assert text.startswith("rank 2 has a parameter b, and ranks 1, 3 have none of that name.")


@pytest.mark.parametrize("dtype", [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int64, torch.bool,
])  # fmt: skip
@pytest.mark.parametrize("numel", [0, 1, 1020, 1021, 5000])
def test_a_checksum_is_of_the_bits_and_their_places(dtype, numel):
    torch.manual_seed(0)
    values = (torch.randn(numel) * 20).to(dtype)
    (expected,) = TENSORS.checksums([values])
    wide = torch.stack([values, values], 1)
    odd = torch.cat([values[:1], values])[1:] if numel else values
    assert TENSORS.checksums([values.clone(), wide[:, 0], odd]) == [expected] * 3
    for place in {0, numel // 2, numel - 1} if numel else ():
        for bit in range(8 * values.element_size()) if dtype is not torch.bool else (0,):
            other = values.clone()
            other.view(torch.uint8)[place * values.element_size() + bit // 8] ^= 1 << bit % 8
            assert TENSORS.checksums([other]) != [expected]


def test_a_checksum_is_the_same_however_much_is_summed_at_once(monkeypatch):
    values = torch.randn(100_000)
    expected = TENSORS.checksums([values])
    monkeypatch.setattr("casync.torch.checksums._ROWS", 3)
    assert TENSORS.checksums([values]) == expected


def test_values_that_change_places_are_seen():
    matrix = torch.randn(64, 1024)
    rows = matrix[torch.randperm(64)]
    columns = matrix[:, torch.randperm(1024)]
    assert len(set(TENSORS.checksums([matrix, rows, columns, -matrix, matrix.T]))) == 5


def test_checksums_are_of_any_parameters():
    parameters = [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.tensor(2.0)), torch.ones(2, 2)]
    assert len(set(TENSORS.checksums(parameters))) == 3
    assert TENSORS.checksums([]) == []
