"""mypy says the same in an environment that has only what `make lint` installs as in one that has everything."""

from __future__ import annotations

import ast
import re
import sys
from importlib import metadata

from support.files import ROOT, load

requirements = load("tools/requirements.py")


def imported_packages() -> set[str]:
    """The first name of each module that a checked file imports."""
    found: set[str] = set()
    for folder in ("benchmarks", "casync", "frameworks", "tests/python"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {name.name.split(".")[0] for name in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names)


def installed_for_lint() -> set[str]:
    """The names of the distributions in the environment of `make lint`, and of those that they need."""
    (groups,) = re.findall(r"^INSTALLED := (build run torch test)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    waiting = ["torch", *requirements.requirements(groups.split(), ROOT / "pyproject.toml")]
    found: set[str] = set()
    while waiting:
        stated = waiting.pop()
        name = re.match(r"[\w.-]+", stated)
        assert name, stated
        normal = re.sub(r"[-_.]+", "-", name[0]).lower()
        if normal in found or "extra ==" in stated:
            continue
        found.add(normal)
        try:
            waiting += metadata.requires(normal) or []
        except metadata.PackageNotFoundError:  # needed on another system
            continue
    return found


def test_a_package_that_lint_may_lack_is_named_in_its_settings() -> None:
    pyproject = requirements.tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    may_lack = {
        module.removesuffix(".*")
        for override in pyproject["tool"]["mypy"]["overrides"]
        if override.get("ignore_missing_imports")
        for module in override["module"]
    }
    distributions = metadata.packages_distributions()
    has = installed_for_lint()
    for package in imported_packages() - may_lack - {"casync", "benchmarks", "tests"}:
        names = {re.sub(r"[-_.]+", "-", name).lower() for name in distributions.get(package, ())}
        assert not names or names & has, f"`make lint` does not install {package}: [tool.mypy] must say so"
