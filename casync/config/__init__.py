"""The things that can be set from outside: settings, and the rules that name a codec for each tensor."""

from casync.config.settings import CONGESTION, NEVER_SECONDS, TRANSPORTS, Config

__all__ = ["CONGESTION", "NEVER_SECONDS", "TRANSPORTS", "Config"]
