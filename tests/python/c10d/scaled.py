"""A training over the backend casync with a codec that keeps residuals, under a GradScaler whose scale doubles at each
step, and one step with an infinity, beside the same without a scaler. Scales are powers of two, so weights are equal.
"""

from __future__ import annotations

import casync.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

STEPS, OVERFLOW = 10, 6


def trained(scaler: torch.amp.GradScaler | None) -> list[torch.Tensor]:
    options = casync.torch.BackendOptions(compression="always(onebit)", min_numel=1, grad_scaler=scaler)
    group = dist.new_group(backend="casync", pg_options=options)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3)), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(STEPS):
        x = torch.randn(8, 12, generator=rows)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x[:, :3].sin())
        if step == OVERFLOW and dist.get_rank() == 0:
            loss = loss * float("inf")
        if scaler is None:
            loss.backward()
            gradients = [one.grad for one in model.parameters() if one.grad is not None]
            if all(gradient.isfinite().all() for gradient in gradients):
                optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [parameter.detach().clone() for parameter in model.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("casync")
    plain = trained(None)
    scaled = trained(torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1))
    for ours, theirs in zip(scaled, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
