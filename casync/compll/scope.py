"""Names: what each stands for at a place of the file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from casync.compll import typed
from casync.compll.diagnostics import fail
from casync.compll.functions import CONSTANTS, ELEMENT_FUNCTIONS, READ_ONLY
from casync.compll.operators import OPERATORS
from casync.compll.tree import Span
from casync.compll.types import Array, Element, Length, Type, counted

__all__ = ["File", "Scope", "Variable"]


@dataclass
class Variable:
    """A name that can be read or assigned. `type` is None as long as it has no value; `local` values differ between
    ranks; `foreign` marks a global that encode left different on each rank, so that decode may not read it.
    """

    name: str
    storage: str
    element: Element
    stars: int
    span: Span
    type: Type | None = None
    declared: Type | None = None  # a state's: what is assigned must have this shape
    local: bool = False
    text: str | None = None
    foreign: bool = False
    inherited: bool = False  # a global in decode that has its value from encode


@dataclass
class File:
    """The names that all functions of a file see."""

    params_name: str | None = None
    parameters: dict[str, typed.Parameter] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)  # globals, constants, states
    functions: dict[str, typed.Function] = field(default_factory=dict)
    sites: dict[int, int] = field(default_factory=dict)  # start of a drawing's span -> its number
    used: set[str] = field(default_factory=set)  # variables, functions and "params.x" that something reads
    lengths: int = 0

    def counted(self) -> Length:
        self.lengths += 1
        return counted(self.lengths)


@dataclass
class Scope:
    """The names within one function. `role`: function, encode, encode_merged, decode, merge, init, or constant for
    expressions outside of functions.
    """

    file: File
    role: str
    variables: dict[str, Variable] = field(default_factory=dict)
    params: str | None = None  # what the parameter block is called here
    payloads: set[str] = field(default_factory=set)
    output: str | None = None
    reads: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)  # inherited globals that are read
    private: bool = False
    branch_local: bool = False  # inside an `if` whose condition differs between ranks

    def find(self, name: str) -> Variable | None:
        return self.variables.get(name) or self.file.variables.get(name)

    def declare(self, variable: Variable) -> None:
        shadows = variable.storage != "argument" and variable.name in self.file.variables
        if shadows or variable.name in self.variables or variable.name == self.params:
            raise fail("redefined", variable.span, f"`{variable.name}` is there already", "another name")
        refuse_known(variable.name, variable.span, functions=False)
        self.variables[variable.name] = variable

    def snapshot(self) -> dict[int, Variable]:
        """Copies of all variables, to be put back at the end of a branch."""
        return {id(variable): replace(variable) for variable in self._all()}

    def restore(self, saved: dict[int, Variable]) -> None:
        self.variables = {name: variable for name, variable in self.variables.items() if id(variable) in saved}
        for variable in self._all():
            before = saved[id(variable)]
            variable.type, variable.local, variable.text = before.type, before.local, before.text
            variable.foreign, variable.inherited = before.foreign, before.inherited

    def _all(self) -> list[Variable]:
        return [*self.file.variables.values(), *self.variables.values()]

    def merge(self, other: dict[int, Variable]) -> None:
        """Merge what this branch of an `if` and the `other` left. Arrays of two lengths have a new one from here on."""
        merged: dict[tuple[Length, Length], Length] = {}
        for variable in self._all():
            after = other[id(variable)]
            if variable.type is None or after.type is None:
                variable.type = None
            elif variable.type != after.type:
                assert isinstance(variable.type, Array) and isinstance(after.type, Array)  # scalars have one type
                lengths = (variable.type.length, after.type.length)
                if lengths not in merged:
                    merged[lengths] = lengths[0] if lengths[0] == lengths[1] else self.file.counted()
                variable.type = replace(variable.type, length=merged[lengths], matrix=None, chunk=None)
            variable.local |= after.local
            variable.foreign |= after.foreign
            variable.inherited |= after.inherited
            variable.text = variable.text if variable.text == after.text else None

    @property
    def variable_names(self) -> str:
        """Return the names of variables, for the text of an error that says what was expected."""
        names = sorted({*self.variables, *self.file.variables})
        return ", ".join(names[:12]) if names else "a name that is declared"


def refuse_known(name: str, span: Span, *, functions: bool) -> None:
    """Variables and functions have name spaces of their own, as figure 5's `min` shows; words of either are refused."""
    if not functions and (name in READ_ONLY or name in CONSTANTS):
        raise fail("redefined", span, f"`{name}` is a read-only value of the language", "another name")
    if functions and (name in ELEMENT_FUNCTIONS or name in OPERATORS):
        raise fail("redefined", span, f"`{name}` is a function of the language", "another name")
