"""Every public function says what each of its parameters means, or whose parameters they are."""

import inspect
import re

import casync.torch as hvd
import pytest

import casync

PUBLIC = [(module, name) for module in (casync, hvd) for name in module.__all__ if not name.startswith("__")]
FUNCTIONS = [getattr(module, name) for module, name in PUBLIC if callable(getattr(module, name))]
# "with arguments as `allreduce` has them", "The other arguments are casyncrun's flags", "Parameters are torch's"
ELSEWHERE = re.compile(r"arguments as `\w+` has|with its (other )?arguments|other arguments are|Parameters are torch's")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_each_parameter_means(function):
    text = inspect.getdoc(function)
    assert text
    if inspect.isclass(function) and issubclass(function, Exception):
        return
    if inspect.isclass(function):
        text += f" {inspect.getdoc(function.__init__)}"
    unsaid = [name for name in inspect.signature(function).parameters if not re.search(rf"\b{name}\b", text)]
    assert not unsaid or ELSEWHERE.search(" ".join(text.split())), f"{function.__name__} says nothing of {unsaid}"


def test_what_waits_says_so():
    """What is submitted says until when its tensor is not the caller's, and what blocks says that it does."""
    names = [name for name in hvd.__all__ if re.search(r"_async_?$", name)]
    assert len(names) == 12
    for name in names:
        text = " ".join(inspect.getdoc(getattr(hvd, name)).split())
        assert re.search("must not change before|may change|the runtime's until", text), name
        if blocking := getattr(hvd, name.replace("_async", ""), None):
            assert "Blocks." in inspect.getdoc(blocking), blocking.__name__
