"""Names that Python and C++ share are the same text in both."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from casync.plan import TOPOLOGIES, GradientPlan

HEADER = Path(__file__).resolve().parents[3] / "casync_core" / "include" / "casync" / "plan.hpp"


def test_topologies_are_those_of_the_core():
    (names,) = re.findall(r"kTopologyName\{(.*?)\}", HEADER.read_text(), re.DOTALL)
    assert tuple(re.findall(r'"(\w+)"', names)) == TOPOLOGIES


def test_fields_are_those_of_the_core():
    (body,) = re.findall(r"struct GradientPlan \{(.*?)\};", HEADER.read_text(), re.DOTALL)
    names = re.findall(r"^  [\w:]+ (\w+)(?: = [^;]*)?;", body, re.MULTILINE)
    assert names == [field.name for field in fields(GradientPlan)]
