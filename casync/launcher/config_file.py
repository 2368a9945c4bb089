"""The file of `--config-file`: horovodrun's YAML, as values of flags.

stall_check:
  warning_time_seconds: 30
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from casync.launcher.flags import FLAGS, Flag

__all__ = ["ConfigFileError", "read_settings"]


class ConfigFileError(ValueError):
    """A file that cannot be meant; the text names the key and what is known there."""


def read_settings(text: str) -> dict[str, Any]:
    """Return the values of flags, by their `dest`, from the file's text."""
    import yaml  # late: few jobs have such a file

    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigFileError(f"it is not YAML: {' '.join(str(error).split())}") from None
    by_setting = {flag.setting: flag for flag in FLAGS if flag.setting}
    values: dict[str, Any] = {}
    for section, keys in _mapping(content, "the file").items():
        if section == "controller":
            keys = {str(keys): True}
        for key, value in _mapping(keys, f"section {section!r}").items():
            flag = by_setting.get(f"{section}.{key}")
            if flag is None:
                known = [name.partition(".")[2] for name in by_setting if name.startswith(f"{section}.")]
                sections = dict.fromkeys(name.partition(".")[0] for name in by_setting)
                there = f"{section} has {', '.join(known)}" if known else f"the sections are {', '.join(sections)}"
                raise ConfigFileError(f"it has no setting {section}.{key}: {there}")
            if value is not None:
                values[flag.dest] = _value(flag, value)
    return values


def _mapping(content: Any, what: str) -> Mapping[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigFileError(f"{what} is {content!r}, not a mapping of names to values")
    return content


def _value(flag: Flag, value: Any) -> Any:
    """Return what argparse would have made of `value`. A switch that is off counts as not given."""
    arguments = flag.arguments
    if "type" not in arguments and "metavar" not in arguments:
        if not isinstance(value, bool):
            raise ConfigFileError(f"{flag.setting} is {value!r}, not true or false")
        return value if arguments.get("action") is argparse.BooleanOptionalAction else value or None
    kind = arguments.get("type", str)
    try:
        if "nargs" in arguments:
            return [kind(str(item)) for item in value]
        found = kind(str(value))
    except (TypeError, ValueError):
        raise ConfigFileError(f"{flag.setting} is {value!r}, which {flag.spelling} does not take") from None
    if found not in arguments.get("choices", (found,)):
        raise ConfigFileError(f"{flag.setting} is {value!r}, not one of {', '.join(arguments['choices'])}")
    return [found] if arguments.get("action") == "append" else found
