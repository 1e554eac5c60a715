# SPDX-License-Identifier: Apache-2.0
"""The page Policies: each policy as YAML, and a pasted manifest compared with what admission makes of it."""

import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from itertools import islice
from typing import Any

import msgspec
import yaml

from app.policy.document import read_documents
from app.policy.schema import Spec
from app.values.errors import BadInput, PolicyError

PASTED_LIMIT = 1 << 18
"""Bytes of the form, in which a byte may take three; a pod written by hand has some 4 kB."""
LONGEST = 1 << 16
"""Characters of the manifest. YAML of that size takes 0.2 s to read, in a thread."""
CONTEXT = 3
MOST_LINES = 2_000

_PLACE = re.compile(r"^:(\d+):(\d+): ", re.MULTILINE)
"""The place that read_documents puts before each problem of a text without a file name."""
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
        try:
            documents = read_documents("", text)
        except PolicyError as error:
            raise BadInput(_PLACE.sub(r"line \1, column \2: ", str(error))) from error
        if len(documents) != 1:
            raise BadInput(f"got {len(documents)} objects, wants one")
        document = documents[0].value
    if not isinstance(document, dict):
        raise BadInput("got no object, wants a Pod or a workload, as YAML or JSON")
    return document


def policy_text(spec: Spec) -> str:
    """Write what a policy sets as YAML, without the description and the priority, which the page shows beside it."""
    stated = spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"description", "priority"})
    return "\n".join(_yaml({field: value for field, value in stated.items() if value}))


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
