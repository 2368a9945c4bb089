"""How the gradients of one optimizer are synchronised: what its user gave, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from casync.codecs import specs as codecs
from casync.codecs.compression import Compression, given
from casync.codecs.specs import CodecsByName, CompressionLike
from casync.collectives.parameter_groups import Wanted, wanted_groups
from casync.config.rules import Rules
from casync.config.settings import Config
from casync.errors import InvalidArgumentError, NotAvailableError
from casync.observe.compression_monitor import CompressionMonitor
from casync.session import default
from casync.session.process_sets import ProcessSet
from casync.tensors import signature as terms
from casync.tensors.signature import Average, Sum

__all__ = ["Settings", "check_unwatched", "count", "positive", "rules_and_topology"]


@dataclass(frozen=True)
class Settings:
    """The settings as `Settings.of` makes them."""

    rules: Rules
    topology: str
    op: int
    predivide: float
    passes: int
    groups: Wanted
    sparse_as_dense: bool
    process_set: ProcessSet
    min_numel: int | None = None
    """Gradients of fewer elements are exact. None takes the session's number."""
    monitor: CompressionMonitor | None = None
    """It measures what codecs do. None: nothing is measured."""

    @classmethod
    def of(
        cls,
        *,
        compression: CompressionLike,
        topology: str | None,
        rules: CodecsByName | None = None,
        min_numel: int | None = None,
        process_set: ProcessSet = default.GLOBAL_PROCESS_SET,
        op: int = Average,
        predivide: float = 1.0,
        passes: int = 1,
        num_groups: int = 0,
        groups: Any = None,
        is_parameter: type[Any] = object,
        sparse_as_dense: bool = False,
        monitor: CompressionMonitor | None = None,
        may_watch: bool = False,
    ) -> Settings:
        """`may_watch`: whether a monitor can be had of these gradients. Without it `Config.watch_codecs` is refused.

        Raises `InvalidArgumentError` for what cannot be, and before `init()`. Members of `groups` are of the type
        `is_parameter`.
        """
        positive(passes)
        if predivide != 1.0 and op != Average:
            raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
        wanted = wanted_groups(num_groups, groups, is_parameter)
        found, topology = rules_and_topology(given(compression, rules), topology)
        resolved, checked = terms.resolve_op(op, None), default.checked(process_set)
        least = None if min_numel is None else count("min_numel", min_numel)
        settings = cls(found, topology, resolved, predivide, passes, wanted, sparse_as_dense, checked, least)
        return replace(settings, monitor=settings._watcher(monitor, may_watch))

    def _watcher(self, monitor: CompressionMonitor | None, may_watch: bool) -> CompressionMonitor | None:
        """The monitor of these gradients: the given one, or that of `Config.watch_codecs`."""
        if monitor is not None and not isinstance(monitor, CompressionMonitor):
            raise InvalidArgumentError(f"monitor={monitor!r}: it must be a CompressionMonitor(every=...) or None")
        config = default.session().config
        if not may_watch:
            check_unwatched(self.rules, config)
            return None
        asked = "monitor=" if monitor is not None else _setting(config)
        if monitor is None and config.watch_codecs:
            monitor = CompressionMonitor(every=config.watch_codecs)
        if monitor is None or not _compresses(self.rules):
            return monitor
        if self.op not in (Average, Sum):
            raise NotAvailableError(f"{asked}: the error of a codec is measured with op Average or Sum alone")
        if self.takes_momentum:
            raise NotAvailableError(
                f"{asked}: a codec that takes over the optimizer's momentum (dgc) does not send the mean gradient, so "
                "there is nothing to compare it with"
            )
        if self.interval > 1:
            raise NotAvailableError(
                f"{asked}: covap does not send the mean gradient of each step, so there is nothing to compare it with"
            )
        return monitor

    def with_rules(self, rules: Rules) -> Settings:
        """Return these settings with other codecs, from a step on that is not the first. Raises `NotAvailableError` for
        those that have to be there from the first, and where a monitor cannot watch them.
        """
        late = next((codec for _, codec in rules.pairs if codecs.rises(codec)), None)
        if late is not None and late not in (codec for _, codec in self.rules.pairs):
            raise NotAvailableError(
                f"compression {late!r}: its coefficient rises with the steps of a gradient from the first one on, so "
                "set_compression() cannot begin with it later. Leave init out, or name it when the optimizer is made"
            )
        found = replace(self, rules=rules)
        return replace(found, monitor=found._watcher(self.monitor, may_watch=True))

    @property
    def is_distributed(self) -> bool:
        """False in a world of one, and outside the process set: then nothing is submitted."""
        return bool(self.process_set.included()) and default.session_of(self.process_set).size > 1

    @property
    def takes_momentum(self) -> bool:
        """Whether some codec takes over the optimizer's momentum."""
        return any(codecs.takes_momentum(codec) for _, codec in self.rules.pairs)

    @property
    def interval(self) -> int:
        """The longest in which some gradient is synchronised once, in steps: more than 1 with covap."""
        return max(codecs.interval_of(codec) for _, codec in self.rules.pairs)

    @property
    def keeps_something(self) -> bool:
        """Whether something is kept under the names of parameters: residuals, state, or the steps that random numbers
        hang on. Casts keep nothing.
        """
        return any(codec != "none" and not codecs.is_cast(codec) for _, codec in self.rules.pairs)


def check_unwatched(rules: Rules, config: Config) -> None:
    """Raise `NotAvailableError` if `Config.watch_codecs` asks to watch gradients that nobody can watch."""
    if config.watch_codecs and _compresses(rules):
        raise NotAvailableError(
            f"{_setting(config)}: what codecs do is measured in DistributedOptimizer and ddp_state of casync.torch "
            "alone; leave the setting out"
        )


def _setting(config: Config) -> str:
    return f"watch_codecs={config.watch_codecs} (CASYNC_WATCH_CODECS)"


def _compresses(rules: Rules) -> bool:
    return any(codec != "none" for _, codec in rules.pairs)


def rules_and_topology(compression: CompressionLike, topology: str | None) -> tuple[Rules, str]:
    """The rules and the topology that a user asks for. None takes the default session's setting. `Compression.none`
    does so too, since it is the default argument in Horovod's interface. The string "none" asks for no compression.
    """
    config = default.session().config
    given = config.compression if compression is None or compression is Compression.none else compression
    return codecs.rules_of(given), config.topology if topology is None else topology


def count(name: str, value: Any) -> int:
    """Raise `InvalidArgumentError` unless it is a number from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgumentError(f"{name}={value!r} is not a number from 0 on")
    return value


def positive(passes: int) -> int:
    """Raise `InvalidArgumentError` unless it is."""
    if passes <= 0:
        raise InvalidArgumentError("backward_passes_per_step must be > 0")
    return passes
