# SPDX-License-Identifier: Apache-2.0
"""Strict reading of YAML, with line and column of each value, and without the implicit types of YAML 1.1.

PyYAML accepts duplicate keys, aliases (by which a small text can become huge) and YAML 1.1 scalars (`no` is false,
`012` is 10, `12:30` is 750). Here each of these is an error with a position and a remedy
(docs/reference/measurements.md#hostile-json).
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from app.values.errors import PolicyError

LARGEST_POLICY_BYTES = 1 << 20
"""Bytes of one text, as many as a ConfigMap can hold (Kubernetes' limit of 1 MiB)."""
DEEPEST_YAML = 64
"""Levels of nesting. A guess: a policy that sets every field has 8."""
MOST_DOCUMENTS = 256
"""Documents in one text. The shipped set has 5; 250,000 empty documents in 1 MiB took 9 s of CPU and 336 MiB."""
MOST_YAML_VALUES = 10_000
"""Keys, scalars, lists and mappings in one text, each of which takes about 12 µs to read (measured). A policy that sets
every field has about 200, so that 50 of those fit into one text."""
LONGEST_YAML_VALUE = 1 << 16
"""Characters of one scalar, since PyYAML's regular expressions take 100 ns for each. The longest command in a manifest
of the test corpus has 9,000."""
STEP_VALUES = 1_000
"""Values between two pauses of a reader that shares its thread; scanning them takes about 1.5 ms (measured)."""

_BOOLEANS = {"true": True, "false": False}
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)\.\d+")
_AMBIGUOUS = re.compile(
    r"(?i:y|yes|n|no|on|off)|[+-]?0[0-9_]+|[+-]?\d[\d_]*(?::[0-5]?\d)+(?:\.\d*)?|(?:TRUE|True|FALSE|False)"
)
_NULLS = {"", "~", "null"}
_INDENTING_TAB = re.compile(r"[ -]*\t")

YAMLPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its plain values, and the line and column of each in the YAML, counted from 1.

    `positions` is empty for an object that was not read from YAML. `literals` are the texts of unquoted scalars that
    are not strings, so that a message can quote them as written.
    """

    file: str
    value: Any
    positions: dict[YAMLPath, tuple[int, int]]
    literals: dict[YAMLPath, str]

    def locate(self, path: YAMLPath) -> str:
        """Write `file:line:column` of a value, or of the nearest value around it; only the file without positions."""
        if not self.positions:
            return self.file
        while path and path not in self.positions:
            path = path[:-1]
        line, column = self.positions.get(path, (1, 1))
        return f"{self.file}:{line}:{column}"


def read_documents(
    file: str, text: str, most_values: int = MOST_YAML_VALUES
) -> Generator[None, None, tuple[Document, ...]]:
    """Read all documents of a YAML text, of which each may have `most_values` values.

    The first steps check STEP_VALUES values each, then each reads one document. Raises PolicyError with all problems,
    each as `file:line:column: problem, remedy`.
    """
    _check_length(file, text)
    try:
        yield from _check_structure(file, text, most_values)
        documents = []
        for node in yaml.compose_all(text, yaml.CSafeLoader):
            empty = isinstance(node, yaml.ScalarNode) and not node.style and node.value in _NULLS
            documents += [] if node is None or empty else [_document(file, node)]
            yield
    except yaml.YAMLError as error:
        raise PolicyError((yaml_problem(file, error, text),)) from error
    return tuple(documents)


def yaml_problem(file: str, error: Exception, text: str) -> str:
    """Write what PyYAML or a constructor of values raised as `file:line:column: not YAML: problem`.

    A tab is called a tab, which PyYAML calls a character that cannot start any token.
    """
    if not isinstance(error, yaml.MarkedYAMLError):
        problem = (str(error).splitlines() or ["nested too deeply"])[0]
        return f"{file}:1:1: not YAML: {problem}"
    mark = error.problem_mark or error.context_mark
    line = text.splitlines()[mark.line : mark.line + 1] if mark else []
    if mark and line and (tab := _INDENTING_TAB.match(line[0])):
        return f"{file}:{mark.line + 1}:{tab.end()}: not YAML: a tab, indent with spaces"
    return f"{file}:{_place(mark)}: not YAML: {error.problem or error.context}"


def most_values_in(text: str) -> int:
    """Give an upper bound of the values in a YAML text, by counting the characters that separate values."""
    return 1 + sum(map(text.count, ("\n", ",", ":", "[", "{", "- ", "? ")))


def _check_length(file: str, text: str) -> None:
    """Check the bytes and the lines `---` of a text before it is parsed.

    Raises PolicyError.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > LARGEST_POLICY_BYTES:
        raise PolicyError(
            (f"{file}:1:1: {size} bytes, wants at most {LARGEST_POLICY_BYTES}: split it into several files",)
        )
    documents = text.count("\n---") + text.startswith("---")
    if documents > MOST_DOCUMENTS:
        remedy = f"wants at most {MOST_DOCUMENTS}: split it into several files"
        raise PolicyError((f"{file}:1:1: {documents} documents, {remedy}",))


def check_object_values(name: str, value: Any, most_values: int) -> None:
    """Check an object that was not read from YAML: the number of its values, their length, and the nesting.

    Raises PolicyError.
    """
    level, values = [value], 0
    for _ in range(DEEPEST_YAML):
        values += len(level)
        if values > most_values:
            problem = f"more than {most_values} values (keys, words, lists): split it into several policies"
            raise PolicyError((f"{name}: {problem}",))
        if any(isinstance(item, str) and len(item) > LONGEST_YAML_VALUE for item in level):
            raise PolicyError((f"{name}: a value of more than {LONGEST_YAML_VALUE} characters: shorten it",))
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise PolicyError((f"{name}: nested deeper than {DEEPEST_YAML} levels, wants a flat policy",))


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _place(mark: Any) -> str:
    return f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"


def _check_structure(file: str, text: str, most_values: int) -> Generator[None, None, None]:
    """Check the stream of YAML events, before any value is made, for its size, its nesting, and anchors.

    Raises PolicyError for the first problem.
    """
    depth = values = documents = 0
    values_before = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        if isinstance(event, yaml.DocumentStartEvent):
            documents, values_before = documents + 1, values
        problem = _problem(event, depth, documents) or _too_many(values, values - values_before, most_values)
        if problem:
            raise PolicyError((f"{file}:{_place(event.start_mark)}: {problem}",))
        if values % STEP_VALUES == 0:
            yield


def _problem(event: Any, depth: int, documents: int) -> str | None:
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        return "anchors and aliases are refused, write the value out"
    if depth > DEEPEST_YAML:
        return f"nested deeper than {DEEPEST_YAML} levels, wants a flat policy"
    if isinstance(event, yaml.ScalarEvent) and len(event.value) > LONGEST_YAML_VALUE:
        return f"a value of {len(event.value)} characters, wants at most {LONGEST_YAML_VALUE}: shorten it"
    if documents > MOST_DOCUMENTS:
        return f"more than {MOST_DOCUMENTS} documents: split them into several files"
    return None


def _too_many(of_text: int, of_document: int, most_of_document: int) -> str | None:
    if of_text > MOST_YAML_VALUES:
        return f"more than {MOST_YAML_VALUES} values (keys, words, lists): split the text into several files"
    if of_document > most_of_document:
        return f"more than {most_of_document} values in one document: split it into several policies"
    return None


class _Reader:
    """Turns one document of YAML nodes into values, and collects the problems in it."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.positions: dict[YAMLPath, tuple[int, int]] = {}
        self.literals: dict[YAMLPath, str] = {}
        self.problems: list[str] = []

    def value(self, node: Any, path: YAMLPath) -> Any:
        """Read a node and all below it."""
        self.positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        scalar = self._scalar(node)
        if not isinstance(scalar, str) and scalar is not None:
            self.literals[path] = node.value
        return scalar

    def _mapping(self, node: Any, path: YAMLPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong(key_node, "a key that is no word, wants a field name")
                continue
            self._scalar(key_node)
            key = key_node.value
            if key in mapping:
                self._wrong(key_node, f"{key}: given twice, remove one")
            self.positions[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            mapping[key] = self.value(value_node, (*path, key))
        return mapping

    def _scalar(self, node: Any) -> Any:
        """Read a scalar by the rules of YAML 1.2; one that YAML 1.1 reads differently must be quoted."""
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
