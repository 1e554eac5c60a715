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
    """One YAML document: plain values, and where each of them stands (1-based line and column)."""

    file: str
    value: Any
    positions: dict[Path, tuple[int, int]]

    def locate(self, path: Path) -> str:
        """Write `file:line:column` of a value, or of the nearest one around it."""
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


def _document(file: str, node: Any) -> Document:
    positions: dict[Path, tuple[int, int]] = {}
    problems: list[str] = []
    value = _value(node, (), positions, problems, file)
    if problems:
        raise PolicyError(tuple(problems))
    return Document(file, value, positions)


def _value(node: Any, path: Path, positions: dict[Path, tuple[int, int]], problems: list[str], file: str) -> Any:
    positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, positions, problems, file)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, index), positions, problems, file) for index, item in enumerate(node.value)]
    return _scalar(node, problems, file)


def _mapping(
    node: Any, path: Path, positions: dict[Path, tuple[int, int]], problems: list[str], file: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{file}:{_place(key_node.start_mark)}"
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(f"{where}: a key that is no word, wants a field name")
            continue
        key = key_node.value
        if key in found:
            problems.append(f"{where}: {key}: given twice, remove one")
        positions[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        found[key] = _value(value_node, (*path, key), positions, problems, file)
    return found


def _scalar(node: Any, problems: list[str], file: str) -> Any:
    """Read a scalar by YAML 1.2's rules; what YAML 1.1 reads otherwise must be quoted."""
    text: str = node.value
    if node.style:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _AMBIGUOUS.fullmatch(text):
        where = f"{file}:{_place(node.start_mark)}"
        problems.append(f'{where}: {text} means different things to different YAML readers, quote it: "{text}"')
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text
