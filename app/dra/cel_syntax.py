# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of CEL, its tokens, and the paths of facts in it (google/cel-go parser/gen/CEL.g4).

The exceptions say how a selector can fail: it does not compile, it fails for a device, or it is not judged here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.values.errors import BadInput


class SelectorError(BadInput):
    """A selector does not compile; the message has Kubernetes' words, or those of cel-go."""


class EvaluationError(Exception):
    """A selector fails for a device, as for an attribute that the device does not have. `&&` and `||` absorb it."""


class Aborted(EvaluationError):
    """An evaluation fails as a whole, because cel-go panics there; neither `&&` nor `||` absorbs that."""


class NotJudged(Exception):
    """An expression, or the search for devices, is beyond what is judged here; the text says why.

    `false && …` and `true || …` need no answer of an operand that is not judged. All causes, by file:

    - allocator.py: more than {} combinations of devices to try on one node
    - cel_facts.py: the evaluation takes too long
    - cel_library.py: \\C in a regular expression; a regular expression so large; an optional null
    - cel_library.py: asApproximateFloat() of a quantity that is stored as a decimal
    - cel_operators.py: double() of such a text; string() of a double
    - cel_parser.py: an expression nested over {} deep; over {} fields or calls in a row; over {} operators in a row
    - cel_program.py: {} is not evaluated; {}() is not evaluated; device as a value
    - cel_program.py: a map with keys that are not strings; has() of an optional value as the result of a condition
    - cel_quantities.py: a quantity of over 200 characters; a quantity with an exponent of over 100
    - cel_quantities.py: add() and sub() of quantities that Kubernetes stores as decimals
    - cel_quantities.py: whether Kubernetes stores a quantity as an integer
    """


class OverBudget(NotJudged):
    """An evaluation would take too long; nothing absorbs that, since Kubernetes fails it as a whole at a limit, too."""


@dataclass(frozen=True, slots=True, eq=False)
class CelNode:
    """A node of the tree; `start` and `end` are the offsets of its text. Nodes are equal only to themselves."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Literal(CelNode):
    """A number, a string, bytes, a bool or null."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Identifier(CelNode):
    """A variable, or a part of the name of a function."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Select(CelNode):
    """`operand.field`; `has(operand.field)` if it tests for presence, and `operand.?field` if it is optional."""

    operand: CelNode
    field: str
    presence: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Call(CelNode):
    """A call of a function or of an operator, whose names are those of cel-go, such as `_==_`."""

    function: str
    target: CelNode | None
    arguments: tuple[CelNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ListOf(CelNode):
    """`[a, ?b]`; `optional` has the indexes of the optional elements."""

    items: tuple[CelNode, ...]
    optional: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class MapOf(CelNode):
    """`{a: b, ?c: d}`; the third item of an entry says that it is optional."""

    entries: tuple[tuple[CelNode, CelNode, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Fold(CelNode):
    """What the macros make: a loop over `sequence` that gives `names` to its elements and accumulates a value.

    cel.bind() is a loop over nothing, whose accumulator is the variable.
    """

    sequence: CelNode
    names: tuple[str, ...]
    accumulator: str
    initial: CelNode
    condition: CelNode
    step: CelNode
    result: CelNode


@dataclass(frozen=True, slots=True, eq=False)
class Unjudged(CelNode):
    """Syntax of Kubernetes' CEL that is not evaluated here; `what` names it."""

    what: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its kind, its text, and the offset of its first character."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset behind the last character."""
        return self.start + len(self.text)


_QUOTED = r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^\\"\n\r])*"|'(?:\\.|[^\\'\n\r])*'"""
_RAW = r"""[rR](?:"{3}.*?"{3}|'{3}.*?'{3}|"[^"\n\r]*"|'[^'\n\r]*')"""
_TOKENS = re.compile(
    rf"""(?P<space>[\t\ \r\n\f]+|//[^\n]*)
    |(?P<bytes>[bB](?:{_RAW}|{_QUOTED}))
    |(?P<string>{_RAW}|{_QUOTED})
    |(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<uint>(?:0x[0-9a-fA-F]+|\d+)[uU])
    |(?P<int>0x[0-9a-fA-F]+|\d+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<operator>==|!=|<=|>=|&&|\|\||[-+*/%<>!?:.,()\[\]{{}}])""",
    re.ASCII | re.DOTALL | re.VERBOSE,
)


def syntax_error(text: str, offset: int, message: str) -> SelectorError:
    """Make the error of an expression that does not compile, with line and column as cel-go writes them."""
    line, column = text.count("\n", 0, offset) + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1
    return SelectorError(f"compilation failed: ERROR: <input>:{line}:{column}: {message}")


def tokens(text: str) -> Iterator[Token]:
    """Cut an expression into tokens; the last has the kind `end`.

    Raises SelectorError.
    """
    offset = 0
    while offset < len(text):
        match = _TOKENS.match(text, offset)
        if match is None:
            raise syntax_error(
                text, offset, f"Syntax error: token recognition error at: '{text[offset : offset + 10]}'"
            )
        offset = match.end()
        if match.lastgroup != "space":
            yield Token(match.lastgroup or "", match[0], match.start())
    yield Token("end", "<EOF>", len(text))


Path = tuple[str, ...]
"""What stands behind `device`: ("driver",), or ("attributes", domain, name), or the first items of that."""
Scope = Mapping[str, tuple[Path, bool] | None]
"""The variables of macros: those that stand for a path of `device` with that path, the others with None."""


def path_of(node: CelNode, scope: Scope) -> tuple[Path, bool] | None:
    """Return the constant path of a node below `device`, and whether a part of it is optional."""
    if isinstance(node, Identifier):
        return scope.get(node.name, ((), False) if node.name == "device" else None)
    operand, step, optional = _step(node)
    if operand is None or step is None:
        return None
    path = path_of(operand, scope)
    if path is None or len(path[0]) == 3 or path[0][:1] in (("driver",), ("allowMultipleAllocations",)):
        return None
    return (*path[0], step), path[1] or optional


def _step(node: CelNode) -> tuple[CelNode | None, str | None, bool]:
    """Split a field or a lookup by a literal text into its operand, the name, and whether it is optional."""
    if isinstance(node, Select) and not node.presence:
        return node.operand, node.field, node.optional
    if isinstance(node, Call) and node.function in ("_[_]", "_[?_]"):
        key = node.arguments[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return node.arguments[0], key.value, node.function == "_[?_]"
    return None, None, False


def is_let(node: CelNode) -> bool:
    """Tell a macro that only names a value, such as cel.bind(), from a loop."""
    return isinstance(node, Fold) and isinstance(node.sequence, ListOf) and not node.sequence.items
