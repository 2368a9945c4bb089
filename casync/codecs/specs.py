"""Codecs as users name them: a spec, a `Codec`, a file of their own, or rules that give each tensor one.

No framework is imported here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from casync.config.rules import Rules, Shape
from casync.errors import InvalidArgumentError
from casync.tensors.signature import CASTS, user_name

__all__ = [
    "Codec",
    "CodecsByName",
    "CompressionLike",
    "are_same",
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

_LOG: Final = logging.getLogger("casync")


@dataclass(frozen=True)
class Codec:
    """A codec by its spec, e.g. `Codec("terngrad(bits=2)")`. A plain string does as well, wherever one is accepted."""

    spec: str

    def __str__(self) -> str:
        return self.spec


CodecsByName: TypeAlias = Mapping[str, str | Codec]
"""Patterns for names and shapes, with a codec each; the first that matches is taken."""
CompressionLike: TypeAlias = str | Codec | CodecsByName | None
"""A codec for everything, or codecs by name. None: what the settings say."""


def codec_text(compression: Any) -> str:
    """The text of what a user gives as a codec: a string, perhaps with `auto(...)` or `covap(...)`, or a `Codec`.

    A path to a CompLL file (`"my.cll"`, `"my.cll(bits=4)"`, `"auto(my.cll, fp16)"`) is compiled and loaded at its
    first use.
    """
    spec = compression.spec if isinstance(compression, Codec) else compression
    if isinstance(spec, str):
        if ".cll" not in spec:
            return spec
        from casync.compll.plugin import resolve

        # No callback: casyncrun names the innermost line outside CaSync, which would be one of re's.
        for file in re.findall(r"[^(),]+\.cll", spec):
            spec = spec.replace(file, resolve(file), 1)
        return spec
    raise InvalidArgumentError(
        f"compression={compression!r} is not a codec: give a spec such as 'onebit', or one of hvd.Compression. A class "
        f"with compress() and decompress() cannot run inside the exchange; it has to be a codec of the core"
    )


def rules_of(compression: Any) -> Rules:
    """The rules that a user gives as `compression`: a mapping from patterns to codecs, or one codec for everything.

    Every codec is made once here, so that a mistake in a rule is an error at once, and on every rank.
    """
    from casync import _core

    table = compression if isinstance(compression, Mapping) else {"*": compression}
    rules = Rules.of({pattern: codec_text(codec) for pattern, codec in table.items()})
    for _, codec in rules.pairs:
        _core.check_compression(codec)
    return rules


def from_numel(codec: str, numel: int, least: int | None, usual: int) -> str:
    """The codec of a tensor where a user wants those of fewer than `least` elements exact, in place of `usual`, below
    which the core leaves out a codec that is not in `always(...)`.
    """
    if least is None or codec == "none":
        return codec
    if numel < least:
        return codec if codec.startswith("always(") else "none"
    return codec if numel >= usual or codec.startswith(("always(", "auto")) else f"always({codec})"


def are_same(one: str, other: str) -> bool:
    """Whether two texts ask for the same codec with the same parameters."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(codec: str) -> str:
    from casync import _core

    try:
        return _core.check_codec(codec)
    except InvalidArgumentError:  # auto(...), always(...)
        return codec


def takes_momentum(codec: str) -> bool:
    """Whether the codec, or one of those in `auto(...)`, takes over the optimizer's momentum."""
    from casync import _core

    return bool(_core.takes_momentum(codec))


def interval_of(codec: str) -> int:
    """In one of how many steps a gradient is synchronised: 4 for `covap(fp16, interval=4)`, 1 without covap."""
    from casync import _core

    return int(_core.interval_of(codec))


def rises(codec: str) -> bool:
    """Whether it is a covap in which what waits counts for less in the first steps."""
    from casync import _core

    return bool(_core.rises(codec))


def is_cast(codec: str) -> bool:
    """Whether the codec is `fp16` or `bf16`, which keep nothing."""
    return codec in CASTS


def keeps_state(codec: str) -> bool:
    """Whether the codec, or one that `auto` may choose, keeps something of a gradient between steps, or covap does."""
    from casync import _core

    return bool(_core.keeps_state(codec))


def codec_by_name(rules: Rules, name: str, shape: Shape) -> str:
    """The codec of a tensor; rules see its name as `named_parameters` has it, without the `allreduce.` or
    `reducescatter.` of ours. `shape` None: not known, so rules by shape are refused.
    """
    return rules.codec_of(user_name(name), shape)


def check_rules(rules: Rules, parameters: Mapping[str, Shape], *, may_warn: bool) -> None:
    """Raise `InvalidArgumentError` if one of the parameters, which are given by name with their shapes, has no codec;
    warn, if this rank may, of rules that decide for none.
    """
    by_name = {user_name(name): shape for name, shape in parameters.items()}
    for name, shape in by_name.items():
        rules.check(name, shape)
    idle = rules.idle(by_name)
    if idle and may_warn:
        found = "; ".join(f"{pattern!r}, because {why}" for pattern, why in idle.items())
        _LOG.warning("rules of compression= that decide for none of the %d parameters: %s", len(by_name), found)
