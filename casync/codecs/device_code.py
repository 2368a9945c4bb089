"""Codecs on a GPU: their device code, compiled for the device that is there, goes to a session.

Without a compiler, or where the driver does not take what it made, gradients on the GPU are compressed by the CPU, with
the same bytes. A warning says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from casync.compll.cuda.nvrtc import cubin_of
from casync.compll.cuda.texts import COMMON, text_of
from casync.errors import DeviceError, NotAvailableError

__all__ = ["add", "cubin_of"]

_LOG: Final = logging.getLogger("casync")


def add(core_session: Any, device: int, specs: Iterable[str]) -> None:
    """Hand the session the code of these codecs of the library for CUDA device `device`.

    Takes about a second where a text is compiled for the first time on this host. Any thread, but no completion.
    """
    from casync import _core

    try:
        major, minor = _core.cuda_facts()["devices"][device]["capability"]
        architecture = f"sm_{major}{minor}"
        common = cubin_of(text_of(COMMON), architecture)
        for spec in specs:
            text = text_of(spec.partition("(")[0])
            code = cubin_of(text, architecture) if text else b""
            core_session.add_device_code(device, common, spec, code)
    except (NotAvailableError, DeviceError) as error:
        _LOG.warning("gradients on the GPU are compressed by the CPU: %s", error)
