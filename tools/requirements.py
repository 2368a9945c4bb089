"""Prints the requirements that pyproject.toml states, for pip: `requirements.py build run torch test`.

`build` and `run` are the build system's and the package's own, any other word is an extra. So the versions are in one
file. Of those for some versions of Python, those for this one are printed, without saying so: a shell takes the text
apart. torch itself is left out: which build of it to take is the caller's choice.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pip._vendor.packaging.markers import Marker

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib


def requirements(groups: list[str], pyproject: Path) -> list[str]:
    stated = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    project = stated["project"]
    table = {"build": stated["build-system"]["requires"], "run": project["dependencies"]}
    table |= project["optional-dependencies"]

    def expanded(group: str) -> Iterator[str]:
        for one in table[group]:
            requirement, _, marker = one.partition(";")
            if marker and not Marker(marker).evaluate():
                continue
            ours = re.fullmatch(r"casync\[([\w-]+)\]", requirement)
            yield from expanded(ours[1]) if ours else [requirement]

    found = dict.fromkeys(requirement for group in groups for requirement in expanded(group))
    return [requirement for requirement in found if re.match(r"[\w.-]+", requirement)[0] != "torch"]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:], Path(__file__).resolve().parent.parent / "pyproject.toml")))
