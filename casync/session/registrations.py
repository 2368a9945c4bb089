"""The operations that a session has described to the core, each under a number that its submits name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casync.errors import InvalidArgumentError
from casync.observe.call_site import call_site, encodable
from casync.session.fixed_plans import FixedPlans
from casync.session.gpu_use import GpuUse
from casync.tensors.signature import OpSignature, bad_name

if TYPE_CHECKING:
    from casync import _core

__all__ = ["Registrations"]

_SWEEP = 3072
"""So many are kept before those go that the core has forgotten."""


class Registrations:
    """The registrations of one session. The core forgets one that was not used for long, and then is told again."""

    def __init__(self, core_session: _core.Session, fixed_plans: FixedPlans, gpu_use: GpuUse) -> None:
        self.core_session = core_session
        self._fixed_plans = fixed_plans
        self._gpu_use = gpu_use
        self._by_terms: dict[OpSignature, int] = {}
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._by_terms)

    def register(self, terms: OpSignature) -> int:
        """The registration of an operation with these terms; the core is asked at first use only. Raises
        `InvalidArgumentError` for bad terms.
        """
        known = self._by_terms.get(terms)
        return known if known is not None and self.core_session.use(known) else self._define(terms)

    def _define(self, terms: OpSignature) -> int:
        """The place of the call goes into error messages."""
        signature = terms.signature()
        if encodable(terms.name) != terms.name:
            raise bad_name(terms.name)
        try:
            registration: int = self.core_session.define(terms.name, site=call_site(), **signature)
        except InvalidArgumentError as error:
            if error.kind == "unfit_plan":
                error.args = (f"{error}. {self._fixed_plans.origin}",)
            raise
        self._by_terms[terms] = registration
        if len(self._by_terms) >= self._sweep_at:
            self._sweep()
        if terms.on_device:
            self._gpu_use.expect(signature["compression"])
        return registration

    def knows(self, registration: int) -> bool:
        """Whether the core still knows the registration."""
        return bool(self.core_session.knows(registration))

    def _sweep(self) -> None:
        """Forget registrations that the core has forgotten."""
        for terms, registration in list(self._by_terms.items()):
            if not self.core_session.knows(registration):
                self._by_terms.pop(terms, None)
        self._sweep_at = max(_SWEEP, 2 * len(self._by_terms))
