"""docs/compatibility.md says of every name of Horovod's what became of it.

Names and what is theirs come from the table of test_interface.py, what is ours from the functions themselves; only the
remarks are the manual's own.
"""

import inspect
import re

import casync.torch as hvd

from support.files import ROOT, load

PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
interface = load("tests/python/torch/test_interface.py")
NAMES = interface.SIGNATURES.keys() | interface.OTHERS


def rows():
    """The cells of the table's rows, without its head."""
    lines = PAGE.partition("<!-- names: begin -->")[2].partition("<!-- names: end -->")[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def additions(name):
    """What `name` takes beyond Horovod's parameters; of what is no function, beyond Horovod's members."""
    thing = getattr(hvd, name)
    if thing is hvd.Compression:
        return [member for member in vars(thing) if not member.startswith("_") and member not in ("none", "fp16")]
    if name not in interface.SIGNATURES:
        return []
    parameters = inspect.signature(thing).parameters.values()
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]


def expected_status(name, remark):
    if name in interface.MISSING:
        return "refused"
    return "more" if additions(name) or remark else "same"


def test_every_name_of_horovods_is_in_the_table():
    named = [re.fullmatch(r"`(\w+)`", cells[0])[1] for cells in rows()]
    assert len(set(named)) == len(named)
    missing, unknown = sorted(NAMES - set(named)), sorted(set(named) - NAMES)
    assert not missing and not unknown, f"docs/compatibility.md lacks {missing}, and has {unknown}, which no test knows"


def test_what_the_table_says_of_each_is_so():
    wrong = []
    for name, status, remark in rows():
        name = name.strip("`")
        if status != (expected := expected_status(name, remark)):
            wrong.append(f"{name} is not {status} but {expected}")
        if expected != "refused":
            left_out = [added for added in additions(name) if f"`{added}`" not in remark]
            wrong += [f"{name}: the remark leaves out `{added}`" for added in left_out]
    assert not wrong, "docs/compatibility.md: " + "; ".join(wrong)


def test_what_horovod_does_not_have_is_listed():
    ours = set(re.findall(r"^\| `(\w+)`", PAGE.partition("names: end")[2], re.M))
    assert ours == {name for name in hvd.__all__ if name not in NAMES}
