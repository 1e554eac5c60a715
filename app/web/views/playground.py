# SPDX-License-Identifier: Apache-2.0
"""The playground: reads a pasted manifest, and compares it with what admission makes of it."""

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from itertools import islice
from typing import Any

import msgspec
import yaml

from app.policy.document import read_documents
from app.values.errors import BadInput

PASTED_LIMIT = 1 << 18
"""Bytes of the form, in which a byte may take three; a pod written by hand has some 4 kB."""
LONGEST = 1 << 16
"""Characters of the manifest. YAML of that size takes 0.2 s to read, in a thread."""
CONTEXT = 3
MOST_LINES = 2_000

Line = tuple[str, str]
"""The class of a line in page.css, and its text."""


def read_pasted(text: str) -> Mapping[str, Any]:
    """Read one object, JSON or YAML.

    Raises BadInput.
    """
    if len(text) > LONGEST:
        raise BadInput(f"got {len(text)} characters, wants at most {LONGEST}")
    if text.lstrip()[:1] == "{":
        try:
            document = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise BadInput(f"not JSON: {error}") from error
    else:
        documents = read_documents("line", text)
        if len(documents) != 1:
            raise BadInput(f"got {len(documents)} objects, wants one")
        document = documents[0].value
    if not isinstance(document, dict):
        raise BadInput("got no object, wants a Pod or a workload, as YAML or JSON")
    return document


def changed_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Line, ...]:
    """Compare two objects as YAML: the changed lines and those around them; none if the objects are equal."""
    return tuple(islice(_lines(_yaml(before), _yaml(after)), MOST_LINES))


def _lines(before: list[str], after: list[str]) -> Iterator[Line]:
    kinds = {"+": "added", "-": "removed", "@": "quiet"}
    for line in islice(unified_diff(before, after, n=CONTEXT, lineterm=""), 2, None):  # without the two file names
        yield kinds.get(line[0], ""), line


def _yaml(document: Mapping[str, Any]) -> list[str]:
    text: str = yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=200)
    return text.splitlines()
