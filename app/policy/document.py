# SPDX-License-Identifier: Apache-2.0
"""YAML read strictly: every value with its line and column, and no scalar that YAML 1.1 would turn into something else.

PyYAML accepts duplicate keys, aliases (an alias bomb explodes on copy) and YAML 1.1 scalars (`no` is
false, `012` is 10, `12:30` is 750); here each is an error with a position and a remedy (OPERATIONS §4.11).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from app.errors import PolicyError

LARGEST_BYTES = 1 << 20
"""A ConfigMap holds no more (Kubernetes' limit of 1 MiB)."""
DEEPEST = 64
"""Levels; no honest policy has more than 8."""

_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)\.\d+")
_AMBIGUOUS = re.compile(
    r"(?i:y|yes|n|no|on|off)|[+-]?0[0-9_]+|[+-]?\d[\d_]*(?::[0-5]?\d)+(?:\.\d*)?|(?:TRUE|True|FALSE|False)"
)
_NULLS = {"", "~", "null"}

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One document: plain values, and where in the YAML each of them stands (1-based line and column).

    `positions`: empty where it came parsed. `literals`: the text of unquoted scalars that are no strings, so that a
    message can quote them as written.
    """

    file: str
    value: Any
    positions: dict[Path, tuple[int, int]]
    literals: dict[Path, str]

    def locate(self, path: Path) -> str:
        """Write `file:line:column` of a value, or of the nearest one around it; the file alone where none is known."""
        if not self.positions:
            return self.file
        while path and path not in self.positions:
            path = path[:-1]
        line, column = self.positions.get(path, (1, 1))
        return f"{self.file}:{line}:{column}"


def read_documents(file: str, text: str) -> tuple[Document, ...]:
    """Read all documents of a YAML text.

    Raises PolicyError with every problem found, each `file:line:column: what, remedy`.
    """
    if len(text.encode()) > LARGEST_BYTES:
        raise PolicyError((f"{file}:1:1: {len(text.encode())} bytes, wants at most {LARGEST_BYTES}",))
    try:
        problems = [*_structure_problems(file, text)]
        if problems:
            raise PolicyError(tuple(problems))
        nodes = [*yaml.compose_all(text, yaml.CSafeLoader)]
    except yaml.MarkedYAMLError as error:
        where = _place(error.problem_mark or error.context_mark)
        raise PolicyError((f"{file}:{where}: not YAML: {error.problem}",)) from error
    except yaml.YAMLError as error:
        raise PolicyError((f"{file}:1:1: not YAML: {str(error).splitlines()[0]}",)) from error
    return tuple(_document(file, node) for node in nodes if not _empty(node))


def _place(mark: Any) -> str:
    return f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"


def _empty(node: Any) -> bool:
    return node is None or (isinstance(node, yaml.ScalarNode) and not node.style and node.value in _NULLS)


def _structure_problems(file: str, text: str) -> Iterator[str]:
    """Find anchors, aliases and too deep nesting on the event stream, before anything is built."""
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        where = f"{file}:{_place(event.start_mark)}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            yield f"{where}: anchors and aliases are refused, write the value out"
            return
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            yield f"{where}: nested deeper than {DEEPEST} levels, wants a flat policy"
            return


class _Reader:
    """Turns one composed document into values, and collects what is wrong on the way."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.positions: dict[Path, tuple[int, int]] = {}
        self.literals: dict[Path, str] = {}
        self.problems: list[str] = []

    def value(self, node: Any, path: Path) -> Any:
        """Read a node and all below it."""
        self.positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        found = self._scalar(node)
        if not isinstance(found, str) and found is not None:
            self.literals[path] = node.value
        return found

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong(key_node, "a key that is no word, wants a field name")
                continue
            self._scalar(key_node)
            key = key_node.value
            if key in found:
                self._wrong(key_node, f"{key}: given twice, remove one")
            self.positions[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            found[key] = self.value(value_node, (*path, key))
        return found

    def _scalar(self, node: Any) -> Any:
        """Read a scalar by YAML 1.2's rules; what YAML 1.1 reads otherwise must be quoted."""
        text: str = node.value
        if node.style:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _AMBIGUOUS.fullmatch(text):
            self._wrong(node, f'{text} means different things to different YAML readers, quote it: "{text}"')
            return text
        if _INTEGER.fullmatch(text):
            return int(text)
        return float(text) if _NUMBER.fullmatch(text) else text

    def _wrong(self, node: Any, what: str) -> None:
        self.problems.append(f"{self._file}:{_place(node.start_mark)}: {what}")


def _document(file: str, node: Any) -> Document:
    reader = _Reader(file)
    value = reader.value(node, ())
    if reader.problems:
        raise PolicyError(tuple(reader.problems))
    return Document(file, value, reader.positions, reader.literals)
