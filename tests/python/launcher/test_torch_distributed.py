"""A script of torch.distributed runs under casyncrun unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.python.launcher.conftest import Runner


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_gloo_finds_its_peers(casyncrun: Runner) -> None:
    script = """
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        value = torch.tensor([float(dist.get_rank() + 1)])
        dist.all_reduce(value)
        print(dist.get_rank(), dist.get_world_size(), value.item())
        dist.destroy_process_group()
    """
    done = casyncrun.run(script, "-np", "2", timeout=150)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>: 0 2 3.0", "[1]<stdout>: 1 2 3.0"], done.stderr
