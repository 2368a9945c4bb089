"""Codecs as users name them, and how an adaptor asks for one."""

from casync.codecs.specs import (
    Codec,
    check_rules,
    codec_by_name,
    codec_text,
    from_numel,
    interval_of,
    is_cast,
    keeps_state,
    rules_of,
    takes_momentum,
)

__all__ = [
    "Codec",
    "check_rules",
    "codec_by_name",
    "codec_text",
    "from_numel",
    "interval_of",
    "is_cast",
    "keeps_state",
    "rules_of",
    "takes_momentum",
]
