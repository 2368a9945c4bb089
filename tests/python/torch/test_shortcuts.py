"""Names that are used again: one call where all is as it was the last time, and nothing taken for granted elsewhere."""

import casync.torch as hvd
import pytest
import torch

from casync import _core
from casync.config.settings import Config
from casync.session import default
from casync.session.session import Session
from casync.tensors.signature import OpKind, OpSignature

pytestmark = [
    pytest.mark.usefixtures("world"),
    pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch has no exchange API"),
]

TERMS = (hvd.Average, (1.0, 1.0), None, None, 0)


class Marked(torch.Tensor):
    pass


def known(name, tensor, *terms):
    """Whether this use of the name would be taken for the last one."""
    return default.session().shortcuts.registration(name, tensor, *(terms or TERMS)) is not None


def last():
    """A name that was used with a tensor of shape (6, 4)."""
    hvd.allreduce_(torch.ones(6, 4), name="t")
    assert known("t", torch.zeros(6, 4))
    return "t"


@pytest.mark.parametrize("other", [
    torch.ones(6, 4, dtype=torch.float64), torch.ones(6, 4, dtype=torch.int32), torch.ones(6, 4, dtype=torch.bfloat16),
    torch.ones(4, 6), torch.ones(24), torch.ones(6, 4, 1), torch.ones(()), torch.ones(0, 4),
    torch.nn.Parameter(torch.ones(6, 4)), torch.ones(6, 4).as_subclass(Marked),
], ids=lambda tensor: f"{type(tensor).__name__} {tensor.dtype} {tuple(tensor.shape)}")  # fmt: skip
def test_another_tensor_is_another_use(other):
    name = last()
    assert not known(name, other)
    expected = other.detach().clone()
    handle = hvd.allreduce_async_(other, name=name)
    assert hvd.synchronize(handle) is other and torch.equal(other.detach(), expected)
    assert known(name, other) is (type(other) is torch.Tensor)


@pytest.mark.parametrize("other", [
    torch.empty(6, 4, device="meta"), torch.ones(6, 4).to_sparse(),
    torch.ones(6, 4, dtype=torch.bool), torch.ones(6, 4, dtype=torch.complex64),
], ids=lambda tensor: f"{tensor.device} {tensor.layout} {tensor.dtype}")  # fmt: skip
def test_what_cannot_be_reduced_is_refused_under_a_known_name(other):
    name = last()
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async_):
        with pytest.raises(ValueError if other.dtype is torch.bool else hvd.NotAvailableError):
            call(other, name=name)
    with pytest.raises(ValueError, match="list"):
        hvd.allreduce_async_([1.0], name=name)


def test_one_tensor_that_has_become_another():
    name, tensor = last(), torch.ones(6, 4)
    hvd.allreduce_(tensor, name=name)
    tensor.data = torch.full((3,), 2, dtype=torch.int64)
    assert not known(name, tensor)
    assert torch.equal(hvd.allreduce_(tensor, name=name), torch.tensor([2, 2, 2]))


def test_a_tensor_that_is_not_contiguous_comes_back_as_it_was():
    """Its registration is that of the last one, but the runtime works on a copy."""
    name, whole = last(), torch.arange(48.0).reshape(6, 8)
    part, expected = whole[:, ::2], whole.clone()
    assert known(name, part)
    handle = hvd.allreduce_async_(part, name=name)
    assert default.session().kept(handle) is not part
    assert hvd.synchronize(handle) is part and torch.equal(whole, expected)
    row = whole[0:1].expand(6, 8)[:, :4]
    assert torch.equal(hvd.allreduce(row, name=name), row)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (1, 5, 1)], ids=str)
def test_shapes_with_ones_and_zeros(shape):
    tensor = torch.ones(shape)
    for _ in range(3):
        assert hvd.synchronize(hvd.allreduce_async_(tensor, name="t")) is tensor
    assert torch.equal(tensor, torch.ones(shape)) and known("t", tensor)


def test_a_view_is_submitted_at_its_place():
    whole = torch.arange(8.0)
    for first in (0, 4, 2):
        part = whole[first : first + 4]
        assert torch.equal(hvd.allreduce(part, name="t"), torch.arange(first, first + 4.0))
        assert hvd.synchronize(hvd.allreduce_async_(part, name="t")) is part


@pytest.mark.parametrize("terms", [
    {"op": hvd.Sum}, {"op": hvd.Max}, {"prescale_factor": 2.0, "op": hvd.Sum}, {"postscale_factor": 2.0},
    {"compression": "fp16"}, {"compression": {"*": "fp16"}}, {"topology": "ring"}, {"priority": 3},
], ids=str)  # fmt: skip
def test_other_terms_are_another_use(terms):
    name = last()
    count = len(default.session()._registrations)
    for _ in range(2):
        tensor = torch.full((6, 4), 3.0)
        expected = 6.0 if len({"prescale_factor", "postscale_factor"} & terms.keys()) else 3.0
        assert hvd.synchronize(hvd.allreduce_async_(tensor, name=name, **terms)) is tensor
        assert torch.equal(tensor, torch.full((6, 4), expected))
    assert len(default.session()._registrations) == count + 1
    tensor = torch.ones(6, 4)
    assert torch.equal(hvd.allreduce_(tensor, name=name), torch.ones(6, 4))


def test_a_known_name_does_not_spare_the_check_of_the_op():
    tensor = torch.ones(3)
    hvd.allreduce_(tensor, name="t", op=hvd.Sum)
    with pytest.raises(ValueError, match="op=True"):
        hvd.allreduce_async_(tensor, name="t", op=True)
    for _ in range(2):
        with pytest.warns(DeprecationWarning, match="average") as caught:
            hvd.allreduce_(tensor, average=False, name="t")
        assert caught[0].filename == __file__


def test_a_name_that_is_outstanding():
    tensor = torch.ones(3)
    hvd.allreduce_(tensor, name="t")
    handle = hvd.allreduce_async_(tensor, name="t")
    with pytest.raises(ValueError, match="same name as another that is outstanding: allreduce.t"):
        hvd.allreduce_async_(tensor, name="t")
    assert list(default.session()._handles.kept) == [handle]
    assert hvd.synchronize(handle) is tensor and hvd.synchronize(handle) is None
    assert hvd.synchronize(hvd.allreduce_async_(tensor, name="t")) is tensor


def test_many_at_once_come_back_each_with_its_own():
    tensors = [torch.full((5,), float(i)) for i in range(50)]
    for _ in range(3):
        handles = [hvd.allreduce_async_(tensor, name=f"t{i}") for i, tensor in enumerate(tensors)]
        assert len(set(handles)) == 50 and default.session()._handles.kept.keys() == set(handles)
        for i in (*range(49, 24, -1), *range(25)):
            assert hvd.synchronize(handles[i]) is tensors[i] and tensors[i][0] == i
    assert not default.session().has_outstanding


def test_a_session_that_was_shut_down():
    session, tensor = Session(Config()), torch.ones(1)
    registration = session._core_session.define("t", 0, 0, 1, 1, 1)
    session.shortcuts.remember(registration, "t", tensor, "terms")
    session.synchronize(session.shortcuts.submit("t", tensor, False, "terms"))
    session.shutdown()
    assert session.shortcuts.submit("t", tensor, False, "terms") is None  # nothing of the program's is kept
    with pytest.raises(hvd.AbortedError, match="shut down"):
        session._core_session.submit(registration, tensor.data_ptr(), tensor.data_ptr(), 0, False)
    assert not session.has_outstanding


def test_wrong_arguments_are_type_errors():
    session = Session(Config())
    for call in (
        lambda: session._core_session.synchronize(-1),
        lambda: session._core_session.synchronize("1"),
        lambda: session._core_session.synchronize(),
        lambda: session._core_session.submit(0, 0, 0, 0, True, [1.5]),
    ):
        with pytest.raises(TypeError):
            call()
    session.shutdown()


def test_a_session_knows_nothing_of_the_one_before():
    tensor = torch.ones(3)
    hvd.allreduce_(tensor, name="t")
    hvd.shutdown()
    with pytest.raises(ValueError, match="not been initialized"):
        hvd.allreduce_async_(tensor, name="t")
    hvd.init()
    assert not known("t", tensor)
    assert hvd.allreduce_(tensor, name="t") is tensor and known("t", tensor)


def test_a_framework_without_the_exchange_api(monkeypatch):
    monkeypatch.delattr(torch.Tensor, "__dlpack_c_exchange_api__")
    tensor = torch.ones(3)
    for _ in range(2):
        assert hvd.synchronize(hvd.allreduce_async_(tensor, name="t")) is tensor
        assert torch.equal(hvd.allreduce(tensor, name="t"), tensor) and not known("t", tensor)


def test_a_comparison_that_changes_what_is_known():
    session, tensor = default.session(), torch.ones(3)
    shortcuts = session.shortcuts
    first, second = (
        session.register(OpSignature(name, OpKind.ALLREDUCE, "float32", (3,))) for name in ("first", "second")
    )

    class Sly:
        def __eq__(self, other):
            shortcuts.remember(second, "t", tensor, "another")
            return True

        __hash__ = None

    shortcuts.remember(first, "t", tensor, Sly())
    assert shortcuts.registration("t", tensor, Sly()) is None
    assert shortcuts.registration("t", tensor, "another") == second


def test_a_comparison_that_fails():
    class Unlike:
        def __eq__(self, other):
            raise KeyError("unlike")

        __hash__ = None

    shortcuts, tensor = default.session().shortcuts, torch.ones(3)
    shortcuts.remember(7, "t", tensor, Unlike())
    for call in (shortcuts.registration, lambda *given: shortcuts.submit(*given[:2], True, *given[2:])):
        with pytest.raises(KeyError, match="unlike"):
            call("t", tensor, Unlike())


def test_calls_that_are_not_as_they_should_be():
    core, shortcuts = default.session()._core_session, default.session().shortcuts
    for call in (core.submit, core.synchronize, shortcuts.submit, shortcuts.registration):
        with pytest.raises(TypeError, match="arguments"):
            call()
    with pytest.raises(TypeError, match="8 arguments"):
        core.submit(0, 0, 0, 0, True, (), print, ())
    with pytest.raises(TypeError, match="callable"):
        core.submit(0, 0, 0, 0, True, (), 3)
    with pytest.raises(TypeError, match="__init__"):
        _core.Shortcuts.__new__(_core.Shortcuts).submit("t", torch.ones(1), True)
    with pytest.raises(TypeError, match="Shortcuts"):
        _core.Shortcuts.submit(core, "t", torch.ones(1), True)
    assert shortcuts.registration(None, torch.ones(1)) is None and shortcuts.registration(3, torch.ones(1)) is None
