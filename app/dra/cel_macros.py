# SPDX-License-Identifier: Apache-2.0
"""The macros of CEL: calls that stand for other syntax.

They are those of google/cel-go parser/macro.go, ext/bindings.go, ext/comprehensions.go and cel/library.go, all of which
Kubernetes enables for selectors (kubernetes staging/src/k8s.io/apiserver/pkg/cel/environment/base.go).
"""

from collections.abc import Callable

from app.dra.cel_syntax import Call, CelNode, Fold, Identifier, ListOf, Literal, Select, SelectorError, Unjudged

RESULT = "@result"
UNUSED = "#unused"


class MacroError(SelectorError):
    """A macro is called with an argument that it does not take; the parser adds the place."""


def expand(call: Call) -> CelNode | None:
    """Return what a call stands for, or None if it is no macro.

    Raises MacroError.
    """
    if call.target is None:
        return _has(call) if call.function == "has" and len(call.arguments) == 1 else None
    if call.function == "bind" and len(call.arguments) == 3:
        return _bind(call) if isinstance(call.target, Identifier) and call.target.name == "cel" else None
    macro = _MACROS.get((call.function, len(call.arguments)))
    return macro(call) if macro else None


def _has(call: Call) -> CelNode:
    field = call.arguments[0]
    if not isinstance(field, Select) or field.optional or field.presence:
        raise MacroError("invalid argument to has() macro")
    return Select(call.start, call.end, field.operand, field.field, presence=True)


def _name(node: CelNode, problem: str) -> str:
    if not isinstance(node, Identifier):
        raise MacroError(problem)
    return node.name


def _let(call: Call, name: str, value: CelNode, result: CelNode) -> Fold:
    """Make `result` with a variable in it, which is computed only when it is asked for."""
    nothing, never = ListOf(call.start, call.end, ()), Literal(call.start, call.end, False)
    variable = Identifier(call.start, call.end, name)
    return Fold(call.start, call.end, nothing, (UNUSED,), name, value, never, variable, result)


def _bind(call: Call) -> CelNode:
    variable, value, result = call.arguments
    name = _name(variable, "cel.bind() variable names must be simple identifiers")
    return _let(call, name, value, result)


def _optional_map(flat: bool) -> Callable[[Call], CelNode]:
    def expand_map(call: Call) -> CelNode:
        name = _name(call.arguments[0], f"{call.function}() variable name must be a simple identifier")
        at = call.start, call.end
        mapped: CelNode = _let(call, name, Call(*at, "value", call.target, ()), call.arguments[1])
        if not flat:
            mapped = Call(*at, "optional.of", None, (mapped,))
        return Call(
            *at, "_?_:_", None, (Call(*at, "hasValue", call.target, ()), mapped, Call(*at, "optional.none", None, ()))
        )

    return expand_map


def _loop(call: Call, variables: int, initial: CelNode, condition: CelNode, step: CelNode, result: CelNode) -> Fold:
    names = tuple(_name(argument, "argument must be a simple name") for argument in call.arguments[:variables])
    if "__result__" in names:
        raise MacroError("iteration variable overwrites accumulator variable")
    if len(set(names)) < variables:
        raise MacroError(f"duplicate variable name: {names[0]}")
    assert call.target is not None
    return Fold(call.start, call.end, call.target, names, RESULT, initial, condition, step, result)


def _quantifier(universal: bool, variables: int) -> Callable[[Call], CelNode]:
    def expand_quantifier(call: Call) -> CelNode:
        at = call.start, call.end
        result = Identifier(*at, RESULT)
        going = result if universal else Call(*at, "!_", None, (result,))
        operator = "_&&_" if universal else "_||_"
        step = Call(*at, operator, None, (result, call.arguments[-1]))
        condition = Call(*at, "@not_strictly_false", None, (going,))
        return _loop(call, variables, Literal(*at, universal), condition, step, result)

    return expand_quantifier


def _exactly_one(variables: int) -> Callable[[Call], CelNode]:
    def expand_one(call: Call) -> CelNode:
        at = call.start, call.end
        result, one = Identifier(*at, RESULT), Literal(*at, 1)
        step = Call(*at, "_?_:_", None, (call.arguments[-1], Call(*at, "_+_", None, (result, one)), result))
        last = Call(*at, "_==_", None, (result, one))
        return _loop(call, variables, Literal(*at, 0), Literal(*at, True), step, last)

    return expand_one


def _list_maker(variables: int, filters: bool, maps: bool) -> Callable[[Call], CelNode]:
    def expand_list(call: Call) -> CelNode:
        at = call.start, call.end
        result = Identifier(*at, RESULT)
        item = call.arguments[-1] if maps else call.arguments[0]
        step = Call(*at, "_+_", None, (result, ListOf(*at, (item,))))
        if filters:
            step = Call(*at, "_?_:_", None, (call.arguments[variables], step, result))
        return _loop(call, variables, ListOf(*at, ()), Literal(*at, True), step, result)

    return expand_list


def _unjudged(call: Call) -> CelNode:
    return Unjudged(call.start, call.end, f"{call.function}()")


_MACROS: dict[tuple[str, int], Callable[[Call], CelNode]] = {
    ("all", 2): _quantifier(True, 1),
    ("all", 3): _quantifier(True, 2),
    ("exists", 2): _quantifier(False, 1),
    ("exists", 3): _quantifier(False, 2),
    ("exists_one", 2): _exactly_one(1),
    ("exists_one", 3): _exactly_one(2),
    ("existsOne", 3): _exactly_one(2),
    ("map", 2): _list_maker(1, filters=False, maps=True),
    ("map", 3): _list_maker(1, filters=True, maps=True),
    ("filter", 2): _list_maker(1, filters=True, maps=False),
    ("transformList", 3): _list_maker(2, filters=False, maps=True),
    ("transformList", 4): _list_maker(2, filters=True, maps=True),
    ("optMap", 2): _optional_map(flat=False),
    ("optFlatMap", 2): _optional_map(flat=True),
    **{(name, count): _unjudged for name in ("transformMap", "transformMapEntry") for count in (3, 4)},
    ("sortBy", 2): _unjudged,
}
"""The macros that are called on a target, by their name and the number of their arguments."""
