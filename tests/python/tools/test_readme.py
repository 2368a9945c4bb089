"""tools/check_readme.py: which commands it finds on a page, and what it runs for each."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = """
Install it with `pip install .`; `casyncrun` starts ranks, and `make test` tries everything.

```bash
# in the clone
pip install .
casyncrun -np 4 train.py   # 4 ranks
```

```python
print("`make nothing`")
```

```python
import casync.torch as hvd
hvd.init()
```

```text
pip install something-that-is-output
```
"""


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("check_readme")


def test_commands_are_lines_of_bash_blocks_and_words_in_backticks(readme: ModuleType) -> None:
    assert readme.commands(PAGE) == ["pip install .", "make test", "casyncrun -np 4 train.py   # 4 ranks"]


def test_the_program_is_the_one_that_begins_with_init(readme: ModuleType) -> None:
    assert readme.program(PAGE) == "import casync.torch as hvd\nhvd.init()\n"
    with pytest.raises(readme.ReadmeError, match="no program"):
        readme.program("```python\nimport torch\n```\n")


@pytest.mark.parametrize("fence", ["", "sh", "console"])
def test_a_block_that_might_hold_commands_is_marked_bash(readme: ModuleType, fence: str) -> None:
    with pytest.raises(readme.ReadmeError):
        readme.commands(f"```{fence}\npip install .\n```\n")


@pytest.mark.parametrize(
    ("written", "command", "in_the_clone"),
    [
        ("pip install .", "pip install .", True),
        ("make demo", "make -n >/dev/null demo", True),
        ("make test", "make -n >/dev/null test", True),
        ("make demo TORCH='torch --index-url X'", "make -n >/dev/null demo TORCH='torch --index-url X'", True),
        ("casyncrun -np 4 train.py", "casyncrun -np 4 train.py", False),
        ("casyncrun -np 4 -H h1:2,h2:2 train.py", "casyncrun --dry-run -np 4 -H h1:2,h2:2 train.py", False),
        ("casync doctor", "casync doctor", False),
    ],
)
def test_what_is_run_for_a_command(readme: ModuleType, written: str, command: str, in_the_clone: bool) -> None:
    step = readme.step_for(written)
    assert (step.command, step.in_the_clone) == (command, in_the_clone)
    assert bool(step.why) == (command != written)


def test_a_command_that_nobody_can_run_is_refused(readme: ModuleType) -> None:
    with pytest.raises(readme.ReadmeError, match="curl"):
        readme.step_for("curl example")


def test_every_command_of_our_readme_can_be_run(readme: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    steps = [readme.step_for(written) for written in readme.commands(text)]
    assert {"pip install .", "casyncrun -np 4 train.py"} <= {step.command for step in steps}
    assert "DistributedOptimizer" in readme.program(text)
