"""The checks, in the order in which they are reported."""

from __future__ import annotations

from casync.compll.conformance.checks.determinism import batches, cut, draws, instruction_sets
from casync.compll.conformance.checks.feedback import feedback
from casync.compll.conformance.checks.nonfinite import nonfinite
from casync.compll.conformance.checks.replicas import checkpoint, mass, replicas
from casync.compll.conformance.checks.round_trip import contraction, error, merging, round_trip, size
from casync.compll.conformance.checks.wire import wire
from casync.compll.conformance.trial import Check

__all__ = ["CHECKS"]

CHECKS = (
    Check("round trip", round_trip),
    Check("size", size),
    Check("contraction", contraction),
    Check("error", error),
    Check("merging", merging),
    Check("determinism", draws),
    Check("partitions", cut),
    Check("batches", batches),
    Check("instruction sets", instruction_sets),
    Check("feedback", feedback),
    Check("replicas", replicas),
    Check("mass", mass),
    Check("checkpoint", checkpoint),
    Check("not finite", nonfinite),
    Check("wire", wire),
)
