"""The steps that a session takes when it first meets a GPU, or a codec that a GPU is to compute."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from casync.errors import DeviceError, InvalidArgumentError
from casync.rendezvous import launcher_pipe as report
from casync.tensors.device import Device

if TYPE_CHECKING:
    from casync import _core

__all__ = ["GpuUse"]


class GpuUse:
    """Has the GPU's code of codecs compiled, and casyncrun told which GPU this rank's tensors are on: several ranks may
    use one by mistake.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._without_code: set[str] = set()
        """Codecs that a GPU may compute and has no code for yet."""
        self._has_told = False

    def expect(self, spec: str) -> None:
        """Tensors on a GPU are registered with this codec."""
        if spec not in self._known:
            from casync import _core

            self._known.add(spec)
            self._without_code.update(_core.device_codecs(spec))

    def begin(self, core_session: _core.Session, device: Device) -> None:
        """A tensor on `device` is about to be submitted."""
        if self._without_code:
            self._add_code(core_session, device)
        if self._has_told:
            return
        self._has_told = True
        if report.is_heard():
            from casync import _core

            with contextlib.suppress(DeviceError):  # which the operation itself meets, and says
                report.uses_gpu(_core.cuda_uuid(device.number))

    def _add_code(self, core_session: _core.Session, device: Device) -> None:
        from casync.codecs import device_code

        specs, self._without_code = self._without_code, set()
        try:
            device_code.add(core_session, device.number, sorted(specs))
        except InvalidArgumentError:  # in a completion, which may not wait: at the next submit
            self._without_code |= specs
