"""When the rounds of local SGD and DiLoCo begin and end, in own steps of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from casync.errors import InvalidArgumentError

__all__ = ["Schedule"]


@dataclass(frozen=True)
class Schedule:
    """The steps after which something is to be done for a fragment.

    The rounds of one fragment begin `sync_every` steps apart. Those of several fragments are spread evenly over these
    steps, so that the link is used evenly too (Streaming DiLoCo, Douillard et al. 2025). Ranks that count alike do
    alike, and no message is needed for that.
    """

    sync_every: int
    """Steps between two rounds of one fragment."""
    fragments: int = 1
    delay: int = 0
    """Steps that a rank makes between the beginning of a round and the use of its result."""
    warmup_steps: int = 0
    """Steps before the first one that counts."""

    def __post_init__(self) -> None:
        for name, least in (("sync_every", 1), ("fragments", 1), ("delay", 0), ("warmup_steps", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgumentError(f"{name}={value!r}: it must be a number from {least} on")
        if self.fragments > self.sync_every:
            raise InvalidArgumentError(
                f"{self.fragments} fragments and sync_every={self.sync_every}: at most one fragment may begin in a step"
            )
        if self.delay >= self.sync_every:
            raise InvalidArgumentError(
                f"fragment_sync_delay={self.delay} and sync_every={self.sync_every}: a round must end before the next "
                "one of the same fragment begins"
            )

    def begins(self, step: int) -> Iterator[int]:
        """The fragments whose round begins after own step `step`, which is counted from 1."""
        counted = step - self.warmup_steps
        if counted <= 0:
            return
        place = (counted - 1) % self.sync_every + 1  # 1 to sync_every
        for fragment in range(self.fragments):
            if place == (fragment + 1) * self.sync_every // self.fragments:
                yield fragment

    def sends_at(self, begun: int) -> int:
        """The step after which a round that began after step `begun` is sent. With a delay that is a step later: the
        ranks tell each other their weights meanwhile.
        """
        return begun + (1 if self.delay > 1 else 0)

    def ends_at(self, begun: int) -> int:
        """The step after which the result of a round that began after step `begun` is used."""
        return begun + self.delay
