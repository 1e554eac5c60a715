# SPDX-License-Identifier: Apache-2.0
"""The syntax tree of CEL, its tokens, and the paths of facts in it (google/cel-go parser/gen/CEL.g4).

The exceptions say how a selector can fail: it does not compile, it fails for a device, or it is not judged here.
"""

import re
from collections.abc import Iterator
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

    Judged are the functions of cel_functions.py and the macros has(), cel.bind(), and all() and exists() over literals,
    with integers, texts, bools, lists, versions and quantities. A selector with anything else is not judged.
    """


def not_evaluated(what: str) -> NotJudged:
    """Make the exception for a part of CEL that is not evaluated."""
    return NotJudged(f"{what} is not evaluated")


@dataclass(frozen=True, slots=True, eq=False)
class CelNode:
    """A node of the tree; `start` and `end` are the offsets of its text. Nodes are equal only to themselves."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Literal(CelNode):
    """An integer, a string or a bool."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Identifier(CelNode):
    """A name: `device`, or what no macro has bound."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Select(CelNode):
    """`operand.field`, or `operand.?field` if it is optional."""

    operand: CelNode
    field: str
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Call(CelNode):
    """A call of a function or of an operator, whose names are those of cel-go, such as `_==_`."""

    function: str
    target: CelNode | None
    arguments: tuple[CelNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ListOf(CelNode):
    """`[a, b]`."""

    items: tuple[CelNode, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Bound(CelNode):
    """A variable of a macro, with the expression that it stands for."""

    value: CelNode


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


def path_of(node: CelNode | None) -> tuple[Path, bool] | None:
    """Return the constant path of a node below `device`, and whether a part of it is optional."""
    if isinstance(node, Bound):
        return path_of(node.value)
    if isinstance(node, Identifier):
        return ((), False) if node.name == "device" else None
    operand, step, optional = _step(node)
    if operand is None or step is None:
        return None
    path = path_of(operand)
    if (
        path is None
        or (not path[0] and isinstance(node, Call))
        or len(path[0]) == 3
        or path[0][:1] in (("driver",), ("allowMultipleAllocations",))
    ):
        return None
    return (*path[0], step), path[1] or optional


def _step(node: CelNode | None) -> tuple[CelNode | None, str | None, bool]:
    """Split a field or a lookup by a literal text into its operand, the name, and whether it is optional."""
    if isinstance(node, Select):
        return node.operand, node.field, node.optional
    if isinstance(node, Call) and node.function in ("_[_]", "_[?_]"):
        key = node.arguments[1]
        if isinstance(key, Literal) and isinstance(key.value, str):
            return node.arguments[0], key.value, node.function == "_[?_]"
    return None, None, False
