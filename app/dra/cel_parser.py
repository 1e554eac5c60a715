# SPDX-License-Identifier: Apache-2.0
"""Reads CEL expressions, and the literals in them, into trees (google/cel-go parser/gen/CEL.g4)."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from app.dra.cel_syntax import (
    Call,
    CelNode,
    Identifier,
    ListOf,
    Literal,
    Select,
    SelectorError,
    Token,
    not_evaluated,
    syntax_error,
    tokens,
)

_SIMPLE = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
_ESCAPES = re.compile(
    r"""\\(?:([abfnrtv\\'"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.?))""",
    re.DOTALL,
)


def read_literal(kind: str, text: str) -> Any:
    """Read the value of a literal from its token.

    Raises ValueError, and NotJudged for a double, an unsigned integer, and bytes.
    """
    if kind == "string":
        return _unescape(*_quoted(text))
    if kind != "int":
        raise not_evaluated(f"a literal of type {kind}")
    digits = text.removeprefix("-")
    value = int(digits, 16 if digits.startswith("0x") else 10)
    value = -value if digits != text else value
    if not -(2**63) <= value < 2**63:
        raise ValueError("out of range")
    return value


def _quoted(text: str) -> tuple[str, bool]:
    """Return what is between the quotes, and whether it is raw."""
    raw = text[0] in "rR"
    text = text[raw:].replace("\r\n", "\n").replace("\r", "\n")
    width = 3 if len(text) >= 6 and text[:3] in ('"""', "'''") else 1
    return text[width:-width], raw


def _unescape(text: str, raw: bool) -> str:
    return text if raw else _ESCAPES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    simple, hexadecimal, short, long, octal, other = match.groups()
    if other is not None:
        raise ValueError("unable to unescape string")
    if simple:
        return _SIMPLE[simple]
    code = int(octal, 8) if octal else int(hexadecimal or short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise ValueError("invalid unicode code point")
    return chr(code)


DEEPEST = 40
"""Expressions that are nested deeper are not judged; cel-go gives up at 250 (parser.go, maxRecursionDepth)."""
_BINARY = {
    **dict.fromkeys(("<", "<=", ">=", ">", "==", "!="), 1),
    "in": 1,
    **dict.fromkeys("+-", 2),
    **dict.fromkeys("*/%", 3),
}
_LITERALS = frozenset({"string", "bytes", "float", "uint", "int"})
_WORDS = {"true": True, "false": False}
_KEYWORDS = frozenset({*_WORDS, "null", "in"})
_RESERVED_IDS = "as break const continue else for function if import let loop package namespace return var void while"
_RESERVED = frozenset(_RESERVED_IDS.split())
"""Names that no variable can have (google/cel-go parser/parser.go, reservedIds)."""

Item = TypeVar("Item")


def parse(text: str) -> CelNode:
    """Read an expression.

    Raises SelectorError if it is none, and NotJudged if it is nested too deeply.
    """
    parser = _Parser(text)
    node = parser.expression()
    if parser.token.kind != "end":
        raise parser.error(f"extraneous input '{parser.token.text}' expecting <EOF>")
    return node


class _Parser:
    """A parser by recursive descent; `token` is the next one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens(text))
        self._index = 0
        self._depth = 0
        self.token = self._tokens[0]

    def error(self, message: str) -> SelectorError:
        return syntax_error(self._text, self.token.start, f"Syntax error: {message}")

    def _next(self) -> Token:
        taken = self.token
        if taken.kind != "end":
            self._index += 1
            self.token = self._tokens[self._index]
        return taken

    def _accept(self, *texts: str) -> Token | None:
        """Take the next token if it is one of these operators."""
        if self.token.text in texts and self.token.kind in ("operator", "name"):
            return self._next()
        return None

    def _expect(self, text: str) -> Token:
        taken = self._accept(text)
        if taken is None:
            raise self.error(f"mismatched input '{self.token.text}' expecting '{text}'")
        return taken

    def expression(self) -> CelNode:
        self._depth += 1
        if self._depth > DEEPEST:
            raise not_evaluated(f"an expression nested over {DEEPEST} deep")
        node = self._disjunction()
        if self._accept("?"):
            then = self._disjunction()
            self._expect(":")
            otherwise = self.expression()
            node = Call(node.start, otherwise.end, "_?_:_", None, (node, then, otherwise))
        self._depth -= 1
        return node

    def _disjunction(self) -> CelNode:
        return self._chain("||", self._conjunction)

    def _conjunction(self) -> CelNode:
        return self._chain("&&", lambda: self._binary(1))

    def _chain(self, operator: str, operand: Callable[[], CelNode]) -> CelNode:
        terms = [operand()]
        while self._accept(operator):
            terms.append(operand())
        return terms[0] if len(terms) == 1 else Call(terms[0].start, terms[-1].end, f"_{operator}_", None, tuple(terms))

    def _binary(self, level: int) -> CelNode:
        """Read operators of a level or a higher one, from the left."""
        if level > 3:
            return self._unary()
        node, length = self._binary(level + 1), 0
        while _BINARY.get(self.token.text) == level and self.token.kind in ("operator", "name"):
            operator = self._next().text
            right = self._binary(level + 1)
            length += 1
            if length > DEEPEST:
                raise not_evaluated(f"over {DEEPEST} operators in a row")
            function = "@in" if operator == "in" else f"_{operator}_"
            node = Call(node.start, right.end, function, None, (node, right))
        return node

    def _unary(self) -> CelNode:
        start, operator, count = self.token, self.token.text, 0
        if self.token.kind != "operator" or operator not in "!-":
            return self._member()
        if operator == "-" and self._tokens[self._index + 1].kind in ("int", "float"):
            return self._member()
        while self._accept(operator):
            count += 1
        operand = self._member()
        return operand if count % 2 == 0 else Call(start.start, operand.end, f"{operator}_", None, (operand,))

    def _member(self) -> CelNode:
        node, length = self._primary(), 0
        while opened := self._accept(".", "["):
            node = self._field(node) if opened.text == "." else self._index_of(node)
            length += 1
            if length > DEEPEST:
                raise not_evaluated(f"over {DEEPEST} fields or calls in a row")
        return node

    def _field(self, operand: CelNode) -> CelNode:
        optional = self._accept("?") is not None
        name = self._identifier()
        if not optional and self._accept("("):
            arguments = self._arguments()
            return self._call(operand.start, name.text, operand, arguments)
        return Select(operand.start, name.end, operand, name.text, optional=optional)

    def _index_of(self, operand: CelNode) -> CelNode:
        function = "_[?_]" if self._accept("?") else "_[_]"
        index = self.expression()
        return Call(operand.start, self._expect("]").end, function, None, (operand, index))

    def _identifier(self) -> Token:
        if self.token.kind != "name" or self.token.text in _KEYWORDS:
            raise self.error(f"mismatched input '{self.token.text}' expecting IDENTIFIER")
        return self._next()

    def _arguments(self) -> tuple[CelNode, ...]:
        return () if self._accept(")") else self._list(self.expression, ")", trailing=False)

    def _list(self, item: Callable[[], Item], closing: str, trailing: bool) -> tuple[Item, ...]:
        """Read items with commas between them up to a closing bracket; `trailing` allows a comma behind the last."""
        items: list[Item] = []
        while True:
            items.append(item())
            if self._accept(closing):
                return tuple(items)
            self._expect(",")
            if trailing and self._accept(closing):
                return tuple(items)

    def _call(self, start: int, function: str, target: CelNode | None, arguments: tuple[CelNode, ...]) -> CelNode:
        return Call(start, self._tokens[self._index - 1].end, function, target, arguments)

    def _primary(self) -> CelNode:
        token = self.token
        if token.kind in _LITERALS or token.text == "-":
            return self._literal()
        if token.text in _WORDS and token.kind == "name":
            return Literal(token.start, self._next().end, _WORDS[token.text])
        if self._accept("("):
            node = self.expression()
            self._expect(")")
            return node
        if self._accept("["):
            return self._list_literal(token.start)
        if token.text in ("{", "null") and token.kind != "string":
            raise not_evaluated("a map" if token.text == "{" else "null")
        self._accept(".")
        return self._named(self._identifier())

    def _named(self, name: Token) -> CelNode:
        """Read a variable, a function's call, or a message, of which there are none for selectors."""
        if name.text in _RESERVED:
            raise syntax_error(self._text, name.start, f"Syntax error: reserved identifier: {name.text}")
        if self._accept("("):
            return self._call(name.start, name.text, None, self._arguments())
        if self.token.text == "{":
            raise self.error(f"undeclared reference to '{name.text}' (in container '')")
        return Identifier(name.start, name.end, name.text)

    def _literal(self) -> CelNode:
        first = self._next()
        token = self._next() if first.text == "-" else first
        kind, text = token.kind, first.text + token.text if token is not first else token.text
        try:
            return Literal(first.start, token.end, read_literal(kind, text))
        except ValueError as problem:
            raise syntax_error(self._text, first.start, f"invalid {kind} literal: {problem}") from None

    def _list_literal(self, start: int) -> CelNode:
        if self._accept(",") and self.token.text != "]":
            raise self.error("mismatched input expecting ']'")
        if closing := self._accept("]"):
            return ListOf(start, closing.end, ())
        items = self._list(self._item, "]", trailing=True)
        return ListOf(start, self._tokens[self._index - 1].end, items)

    def _item(self) -> CelNode:
        if self._accept("?"):
            raise not_evaluated("an optional element of a list")
        return self.expression()
