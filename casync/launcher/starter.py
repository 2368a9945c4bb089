"""Starts the ranks where there is no mpirun: `starter.py PLAN COMMAND...`, with PLAN in JSON.

    {"size": 4, "exports": ["PATH"], "hosts": [{"ranks": 2, "reach": []}, {"ranks": 2, "reach": ["ssh", "h2"]}]}

Hosts are filled in order. `reach` are the words that run a shell's line on a host; none: it is this one. Another host
runs this file at the same path, with the Python of the same path, in a folder of the same path. What it is to start,
and the variables that `exports` names, go to its stdin, where nobody else reads them.

Each rank finds its place in CASYNC_STARTED_RANK and its like. Standard library only, run by its path. When this process
dies, of a signal too, each rank's wrapper hears of it (`rank.supervisor`) and ends its command.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

TOLD = "--told"


def main(argv: Sequence[str]) -> int:
    """Status 1 if a rank could not be started or left with another status than 0."""
    if list(argv) == [TOLD]:
        return _told(json.loads(sys.stdin.readline()))
    plan, command = json.loads(argv[0]), list(argv[1:])
    exports = {name: os.environ[name] for name in plan["exports"] if name in os.environ}
    began: list[tuple[subprocess.Popen[bytes], str]] = []
    first = 0
    for host in plan["hosts"]:
        place = {"first": first, "ranks": host["ranks"], "size": plan["size"]}
        if host["reach"]:
            began.append((_there(host["reach"], {**place, "command": command, "environ": exports}), host["reach"][-1]))
        else:
            began += [(process, "") for process in _here(command, place, os.environ)]
        first += host["ranks"]
    statuses = [process.wait() for process, _ in began]
    for (_, host), status in zip(began, statuses, strict=True):
        if host and status not in (0, 1):
            sys.stderr.write(f"the command that started the ranks of host {host} ended with status {status}\n")
    return int(any(statuses))


def _here(
    command: Sequence[str], place: Mapping[str, Any], environ: Mapping[str, str]
) -> list[subprocess.Popen[bytes]]:
    def names(number: int) -> dict[str, str]:
        found = {"RANK": place["first"] + number, "SIZE": place["size"]}
        found |= {"LOCAL_RANK": number, "LOCAL_SIZE": place["ranks"]}
        return {f"CASYNC_STARTED_{name}": str(value) for name, value in found.items()}

    return [subprocess.Popen(command, env={**environ, **names(number)}) for number in range(place["ranks"])]


def _there(reach: Sequence[str], told: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    line = shlex.join([sys.executable, "-I", "-S", os.path.abspath(__file__), TOLD])
    process = subprocess.Popen([*reach, line], stdin=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps({**told, "folder": os.getcwd()}).encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # it has said why, and its status tells
    return process


def _told(told: Mapping[str, Any]) -> int:
    try:
        os.chdir(told["folder"])
    except OSError as error:
        host = os.uname().nodename
        sys.stderr.write(f"host {host}: {told['folder']}: {error.strerror}: every host needs the folder of the job\n")
        return 1
    began = _here(told["command"], told, {**os.environ, **told["environ"]})
    return int(any([process.wait() for process in began]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
