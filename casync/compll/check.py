"""Checks a whole file: names, types, shapes, rounds, and that decode reads what encode wrote.

`check_program` gives a typed.Codec. A file without decode is a typed.Codec too (figure 5 has none), but no codec that
can be run: `codec.decode` is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from casync.compll import tree, typed
from casync.compll.constants import evaluate, number
from casync.compll.diagnostics import Located, fail
from casync.compll.expressions import Expressions
from casync.compll.lengths import product
from casync.compll.properties import check_properties, whole_unit
from casync.compll.rounds import cut_into_rounds
from casync.compll.scope import File, Scope, Variable, refuse_known
from casync.compll.statements import Body, Payload
from casync.compll.tree import walk
from casync.compll.types import FLOAT, UINT8, UNIT, Array, Scalar, Type, fixed

__all__ = ["ENTRIES", "check_program"]

# The functions with a known name: their array arguments ("g": gradient, "p": payload) and which of them is set.
ENTRIES = {
    "init": ("g", None),
    "encode": ("gp", 1),
    "encode_merged": ("gp", 1),
    "decode": ("pg", 1),
    "merge": ("ppp", 2),
}
_SIGNATURES = {
    "init": "void init(float* gradient, PARAMS params)",
    "encode": "void encode(float* gradient, uint8* compressed, PARAMS params)",
    "encode_merged": "void encode_merged(float* gradient, uint8* compressed, PARAMS params)",
    "decode": "void decode(uint8* compressed, float* gradient, PARAMS params)",
    "merge": "void merge(uint8* left, uint8* right, uint8* merged, PARAMS params)",
}
_MOST_DRAWS = 16


def check_program(program: tree.Program) -> typed.Codec:
    """The typed tree of `program`. Raises CompllError."""
    try:
        local_states: set[str] = set()
        while True:  # until no further state turns out to differ between ranks; at most once per state
            checker = _Checker(program, local_states)
            codec = checker.codec()
            if checker.local_states <= local_states:
                return codec
            local_states |= checker.local_states
    except Located as error:
        raise error.in_file(program.text, program.path) from None


class _Checker:
    def __init__(self, program: tree.Program, local_states: set[str]) -> None:
        self.program = program
        self.file = File(sites=_sites(program))
        self.known_local = local_states
        self.local_states: set[str] = set()
        self.constants: list[typed.GlobalConstant] = []
        self.block = self._only(tree.Properties, "properties")
        self.entries: dict[str, tree.Function] = {}
        self.payload = Payload()
        self.after_encode: dict[str, Variable] = {}
        self.kept: tuple[str, ...] = ()

    def codec(self) -> typed.Codec:
        self._parameters()
        states = []
        for item in self.program.items:
            if isinstance(item, tree.Global):
                self._global(item)
            elif isinstance(item, tree.State):
                states.append((item, self._state(item)))
            elif isinstance(item, tree.Function) and item.name in ENTRIES:
                if item.name in self.entries:
                    raise fail("redefined", item, f"`{item.name}` is there already", "one of each")
                self.entries[item.name] = item
            elif isinstance(item, tree.Function):
                self._function(item)
        if "encode" not in self.entries:
            end = len(self.program.text.rstrip())
            last = self.program.text[:end].rsplit("\n", 1)[-1]
            span = tree.Span(end, end, self.program.text.count("\n", 0, end) + 1, len(last) + 1)
            raise fail("no-encode", span, "a file without encode", _SIGNATURES["encode"])
        entries = {name: self._entry(name) for name in ENTRIES if name in self.entries}
        typed_states = tuple(self._initial(item, variable) for item, variable in states)
        aggregated = tuple(part.ends.operation for part in entries["encode"].rounds if part.ends is not None)
        properties = check_properties(self.block, self.file, aggregated)
        packed = self.payload.items or ()
        self._check_payload(properties, packed, typed_states)
        self._check_unused()
        decode = entries.get("decode")
        return typed.Codec(
            path=self.program.path,
            parameters=tuple(self.file.parameters.values()),
            constants=tuple(self.constants),
            globals=tuple((v.name, v.element, v.stars) for v in self.file.variables.values() if v.storage == "global"),
            states=typed_states,
            functions=tuple(self.file.functions.values()),
            properties=properties,
            init=entries.get("init"),
            encode=entries["encode"],
            encode_merged=entries.get("encode_merged"),
            decode=decode,
            merge=entries.get("merge"),
            payload=packed,
            fixed_size=_sized(packed),
            kept=self.kept,
        )

    def _only(self, kind: type, what: str) -> Any:
        found = [item for item in self.program.items if isinstance(item, kind)]
        if len(found) > 1:
            raise fail("redefined", found[1], f"a second {what} block", "one for a file")
        return found[0] if found else None

    # --- declarations

    def _parameters(self) -> None:
        block = self._only(tree.ParamBlock, "param")
        if block is None:
            return
        self.file.params_name = block.name
        for field in block.fields:
            if field.name in self.file.parameters:
                raise fail("redefined", field, f"parameter `{field.name}` is there already", "another name")
            if field.type.stars or field.type.width is not None:
                raise fail("type", field.type, "a parameter that is not one plain value", "a type such as uint8, float")
            element = Expressions(Scope(self.file, "constant")).element(field.type)
            default = None if field.default is None else self._literal(field.default, element)
            accepted: tuple[float | int, ...] = ()
            if field.domain is not None:
                accepted = tuple(self._literal(value, element) for value in field.domain.values)
                interval = field.domain.interval
                if interval and accepted[0] > accepted[1]:
                    raise fail("param-domain", field.domain, "an empty interval", "[lowest, highest]")
                inside = default is None or (
                    accepted[0] <= default <= accepted[1] if interval else default in accepted
                )  # fmt: skip
                if not inside:
                    raise fail("param-domain", field, f"the default {default} is not accepted", "one that `in` names")
            self.file.parameters[field.name] = typed.Parameter(
                field.name, element, default, accepted, field.domain is not None and field.domain.interval
            )

    def _literal(self, node: tree.Expression, element: Any) -> float | int:
        sign = -1 if isinstance(node, tree.Unary) and node.operator == "-" else 1
        inner = node.operand if isinstance(node, tree.Unary) and node.operator in "+-" else node
        if not isinstance(inner, tree.Number):
            raise fail("param-domain", node, "not a number", "a number, as 2 or 0.001")
        value = sign * number(inner)
        if element.floating:
            return float(value)
        low = -(1 << (element.bits - 1)) if element.kind == "int" else 0
        high = (1 << (element.bits - (element.kind == "int"))) - 1
        if isinstance(value, float) or not low <= value <= high:
            raise fail("param-domain", node, f"{value:g} is no {element}", f"a whole number from {low} to {high}")
        return value

    def _constant_scope(self) -> Expressions:
        return Expressions(Scope(self.file, "constant", params=self.file.params_name and "params"))

    def _new(self, name: str, storage: str, node: tree.TypeName, span: tree.Span) -> Variable:
        if name in self.file.variables or name == "params":
            raise fail("redefined", span, f"`{name}` is there already", "another name")
        refuse_known(name, span, functions=False)
        if node.stars > 2:
            raise fail("type", node, "more than two stars", "a value, an array (*) or a matrix (**)")
        variable = Variable(name, storage, self._constant_scope().element(node), node.stars, span)
        self.file.variables[name] = variable
        return variable

    def _global(self, item: tree.Global) -> None:
        if item.value is None:
            for name in item.names:
                self._new(name, "global", item.type, item.span)
            return
        if item.type.stars:
            raise fail("constant", item, "an array as a constant", "one value; a state is an array with a value")
        expressions = self._constant_scope()
        value = expressions.scalar(item.value)
        if value.text is None:
            raise fail("constant", item.value, "not known beforehand", "parameters, shape and constants")
        variable = self._new(item.names[0], "constant", item.type, item.span)
        value = expressions.convert(value, variable.element)
        variable.type, variable.text = Scalar(variable.element), item.names[0]
        self.constants.append(typed.GlobalConstant(item.names[0], value))

    def _state(self, item: tree.State) -> Variable:
        if item.type.stars != len(item.lengths):
            message = f"{item.type.stars} stars and {len(item.lengths)} lengths"
            raise fail("state", item, message, "a length in [] for each star")
        expressions = self._constant_scope()
        lengths = []
        for node in item.lengths:
            length = expressions.whole(node)
            if length.text is None:
                raise fail("state", node, "a length that is not known beforehand", "size, rows, cols, parameters")
            lengths.append(fixed(length.text, length))
        variable = self._new(item.name, "state", item.type, item.span)
        if not lengths:
            type_: Type = Scalar(variable.element)
        elif len(lengths) == 1:
            type_ = Array(variable.element, lengths[0])
        else:
            rows, columns = lengths
            type_ = Array(variable.element, product(rows, columns), matrix=(rows, columns))
        variable.type = variable.declared = type_
        variable.local = item.name in self.known_local
        return variable

    def _initial(self, item: tree.State, variable: Variable) -> typed.StateVariable:
        expressions = self._constant_scope()
        initial = expressions.convert(expressions.scalar(item.initial), variable.element)
        if initial.local:
            raise fail("state", item.initial, "an initial value that differs between ranks", "shared_random, shape")
        assert variable.declared is not None
        local = variable.name in self.known_local | self.local_states
        return typed.StateVariable(item.name, variable.declared, initial, item.checkpoint or item.name, local)

    # --- functions

    def _function(self, item: tree.Function) -> None:
        if item.name in self.file.functions:
            raise fail("redefined", item, f"`{item.name}` is there already", "another name")
        refuse_known(item.name, item.span, functions=True)
        scope = Scope(self.file, "function", params=self.file.params_name and "params")
        results = tuple(Expressions(scope).element(result) for result in item.results)
        if not results:
            raise fail("signature", item, f"`{item.name}` returns nothing", f"a type, or one of {', '.join(ENTRIES)}")
        starred = next((result for result in item.results if result.stars), None)
        if starred is not None:
            raise fail("signature", starred, "an array as a result", "functions work on single values")
        arguments = []
        for argument in item.arguments:
            if isinstance(argument.type, str) or argument.type.stars:
                raise fail("signature", argument, "an argument that is not one value", "float x; params is seen anyway")
            element = Expressions(scope).element(argument.type)
            scope.declare(Variable(argument.name, "argument", element, 0, argument.span, Scalar(element)))
            arguments.append(typed.Argument(argument.name, Scalar(element)))
        _refuse_recursion(item)
        body = Body(scope, self.payload, results=results)
        statements = body.check(item.body)
        if not _always_returns(item.body):
            raise fail("missing-return", item, f"`{item.name}` may end without a result", "return on every way")
        body.finish()
        self.file.functions[item.name] = typed.Function(
            item.name, tuple(arguments), results, statements, frozenset(scope.reads), scope.private
        )

    def _entry(self, name: str) -> typed.Entry:
        item = self.entries[name]
        scope = self._entry_scope(name, item)
        self._globals_at_start(name)
        body = Body(scope, self.payload, whole_unit=whole_unit(self.block) or name == "init")
        statements = body.check(item.body)
        if name == "encode":
            self.payload.items = body.packed
        self._check_output(name, item, scope, body)
        body.finish()
        states = [variable for variable in self.file.variables.values() if variable.storage == "state"]
        self.local_states |= {variable.name for variable in states if variable.local}
        kinds, output = ENTRIES[name]
        names = [argument.name for argument in item.arguments[: len(kinds)]]
        if name == "decode":
            self.kept = tuple(sorted(scope.kept))
        elif name == "encode":
            self.after_encode = {v.name: replace(v) for v in self.file.variables.values()}
        result = None if output is None else names.pop(output)
        return typed.Entry(name, tuple(names), result, cut_into_rounds(statements))

    def _entry_scope(self, name: str, item: tree.Function) -> Scope:
        kinds, output = ENTRIES[name]
        wanted = _SIGNATURES[name].replace("PARAMS params", f"{self.file.params_name or 'PARAMS'} params")
        scope = Scope(self.file, name)
        rest = item.arguments[len(kinds) :]
        if item.results or len(item.arguments) < len(kinds) or len(rest) > 1:
            raise fail("signature", item, f"`{name}` has another signature", wanted)
        for place, (kind, argument) in enumerate(zip(kinds, item.arguments, strict=False)):
            element = FLOAT if kind == "g" else UINT8
            given = argument.type
            if isinstance(given, str) or (given.element, given.stars) != (element.name, 1):
                raise fail("signature", argument, f"not what `{name}` is given here", wanted)
            variable = Variable(argument.name, "output" if place == output else "argument", element, 1, argument.span)
            scope.declare(variable)
            if kind == "p":
                scope.payloads.add(argument.name)
            if place == output:
                scope.output = argument.name
            elif kind == "g":
                variable.type, variable.local = Array(FLOAT, UNIT), True
        for argument in rest:
            if argument.type != self.file.params_name:
                raise fail("signature", argument, "not the parameter block", wanted)
            scope.params = argument.name
        return scope

    def _globals_at_start(self, name: str) -> None:
        """Globals have no value at first; in decode those that encode left equal on all ranks."""
        for variable in self.file.variables.values():
            if variable.storage == "state":
                variable.local = variable.foreign = variable.name in self.known_local
                variable.foreign &= name in ("decode", "merge")
            elif variable.storage == "global":
                before = self.after_encode.get(variable.name) if name == "decode" else None
                variable.type = None if before is None else before.type
                variable.text = None
                variable.inherited = variable.type is not None
                variable.foreign = before is not None and variable.inherited and before.local
                variable.local = False

    def _check_output(self, name: str, item: tree.Function, scope: Scope, body: Body) -> None:
        if ENTRIES[name][1] is None:
            return
        assert scope.output is not None
        if scope.output in scope.payloads:
            if body.packed is None:
                expected = f"{scope.output} = concat(...) at the top level"
                raise fail("output-unset", item, f"`{name}` packs nothing", expected)
            if self.payload.items is not None and [i.type for i in body.packed] != [i.type for i in self.payload.items]:
                raise fail("concat-value", item, f"`{name}` packs another payload than encode", "the same values")
            return
        output = scope.variables[scope.output]
        if output.type is None:
            raise fail("output-unset", item, f"`{scope.output}` is not set on every way", f"{scope.output} = ...")
        assert isinstance(output.type, Array)
        if output.type.length != UNIT:
            raise fail("length", item, f"`{scope.output}` gets {output.type.length}", f"{scope.output}.size of them")
        if output.local:
            raise fail(
                "decode-reads-local", item, "what is decoded differs between ranks", "the same decoding on every rank"
            )

    # --- the whole

    def _check_payload(
        self, properties: typed.Properties, packed: Sequence[typed.Item], states: Sequence[typed.StateVariable]
    ) -> None:
        sized = _sized(packed)
        place = self.block or self.entries["encode"]
        entry = {found.name: found for found in self.block.entries} if self.block is not None else {}
        if properties.rounds[-1].startswith("reduce"):
            elements = {item.type.element for item in packed}
            if len(elements) > 1 or not sized:
                raise fail(
                    "reduce-payload",
                    entry["aggregation"],
                    "payloads of several types, or of a length that differs between ranks, cannot be reduced",
                    "a concat of one type and a known length, or reencode or gather",
                )
        if sized == (properties.bound is not None):
            at = entry.get("bound", place)
            message = "a bound, and a payload of known size" if sized else "the payload's size is not known beforehand"
            raise fail("bound", at, message, "no bound" if sized else "bound = the most bytes of a unit of `size`")
        if properties.bound is not None and any(b < 1 for b in evaluate(properties.bound, self.file.parameters)):
            raise fail("bound", entry["bound"], "not a positive bound", "the most bytes of a unit of `size` elements")
        if properties.feedback == "own" and not any(state.local for state in states):
            raise fail(
                "feedback", entry["feedback"], "feedback = own, and encode keeps nothing", "a state that encode assigns"
            )

    def _check_unused(self) -> None:
        for item in self.program.items:
            if isinstance(item, tree.ParamBlock):
                for field in item.fields:
                    self._used(f"params.{field.name}", field.name, field)
            elif isinstance(item, tree.Function) and item.name not in ENTRIES:
                self._used(item.name, item.name, item)
            elif isinstance(item, tree.State):
                self._used(item.name, item.name, item)
            elif isinstance(item, tree.Global):
                for name in item.names:
                    self._used(name, name, item)

    def _used(self, key: str, name: str, at: tree.Node) -> None:
        if key not in self.file.used:
            raise fail("unused-name", at, f"`{name}` is never read", "a use of it, or no such name")


def _sized(packed: Sequence[typed.Item]) -> bool:
    return all(not isinstance(item.type, Array) or item.type.length.sized for item in packed)


def _always_returns(statements: Sequence[tree.Statement]) -> bool:
    if not statements:
        return False
    last = statements[-1]
    if isinstance(last, tree.If):
        return _always_returns(last.then) and _always_returns(last.otherwise)
    return isinstance(last, tree.Return)


def _refuse_recursion(item: tree.Function) -> None:
    for node in walk(item):
        if isinstance(node, tree.Call) and node.function == item.name:
            raise fail("recursion", node, f"`{item.name}` calls itself", "a function that is defined above")


def _sites(program: tree.Program) -> dict[int, int]:
    """Draws are numbered in the order of the text, so that no two draw the same numbers."""
    drawing = [
        node
        for item in program.items
        for node in walk(item)
        if isinstance(node, tree.Draw) or (isinstance(node, tree.Call) and node.function == "sample")
    ]
    drawing.sort(key=lambda node: node.span.start)
    if len(drawing) > _MOST_DRAWS:
        raise fail("draw", drawing[_MOST_DRAWS], f"more than {_MOST_DRAWS} draws", "functions that share a draw")
    return {node.span.start: site for site, node in enumerate(drawing)}
