"""Two levels: gradients in every step inside a host or a site, parameters in rounds between all."""

from __future__ import annotations

from casync.session import default
from casync.session.gather_bytes import gather_bytes
from casync.session.process_sets import ProcessSet

__all__ = ["same_site"]


def same_site(site: str | None = None) -> ProcessSet:
    """The ranks of this rank's site, for an optimizer that averages gradients among them in every step. Collective over
    all ranks.

        inside = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=same_site())
        with hvd.DiLoCo(model, inside, sync_every=100, compression="onebit"): ...

    Such ranks have the same parameters. A round adds up what they have changed inside each host, and sends one payload
    to other hosts.

    Args:
        site: a word that the ranks of one site share, and no others; None: a site is a host.
    """
    owner = default.session()
    own = f"host {owner.world.host_of[owner.rank]}" if site is None else site
    sites = [bytes(each).decode() for each in gather_bytes(owner, "casync.same_site", own.encode())]
    return default.process_sets().among([rank for rank, other in enumerate(sites) if other == own])
