"""The interface by which an adaptor describes the device that its tensors are on. No framework is imported here."""

from __future__ import annotations

from abc import ABC, abstractmethod

__all__ = ["Device"]


class Device(ABC):
    """Where the tensors of one operation are that are not in this host's memory, and how the program uses them there.

    A device works off what it is given in streams. The runtime reads a tensor when the stream that was current at the
    submit has come to that point, and has the stream that is current at the end wait for the result.
    """

    @property
    @abstractmethod
    def number(self) -> int:
        """The device, as CUDA counts in this process."""

    @abstractmethod
    def stream(self) -> int:
        """The CUstream that is current on the calling thread; 0: the legacy default stream."""

    @abstractmethod
    def ordered(self) -> None:
        """Called when the stream that is current on the calling thread waits for the result: from now on the tensors
        belong to it. An allocator that gives memory out again by streams must be told.
        """
