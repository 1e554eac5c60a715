# SPDX-License-Identifier: Apache-2.0
"""Label selectors as kubectl's -l takes them (k8s.io/apimachinery pkg/labels selector.go Parse)."""

import re

from app.values.errors import BadInput
from app.values.label_requirements import Requirement, requirement

_PART = re.compile(r"\s*(?:([^\s,()=!]+)\s+(in|notin)\s*\(([^)]*)\)|([^,()]+))\s*(?:,|$)")


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Read a selector such as `pool=gpu,zone in (a,b),!spot`; an empty one is for all.

    Raises BadInput.
    """
    found, position = [], 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise BadInput(f"selector: got {text[:80]!r}, wants such as pool=gpu,zone in (a,b),!spot")
        key, operator, values, simple = match.groups()
        if key:
            listed = [each.strip() for each in values.split(",")]
            found.append(requirement(key, "In" if operator == "in" else "NotIn", listed))
        else:
            found.append(_simple(simple.strip()))
        position = match.end()
    return tuple(found)


def _simple(text: str) -> Requirement:
    for sign, operator in (("!=", "NotIn"), ("==", "In"), ("=", "In")):
        key, found, value = text.partition(sign)
        if found:
            return requirement(_key(key), operator, (value.strip(),))
    if text.startswith("!"):
        return requirement(_key(text[1:]), "DoesNotExist")
    return requirement(_key(text), "Exists")


def _key(text: str) -> str:
    key = text.strip()
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", key):
        raise BadInput(f"selector: got key {key[:60]!r}, wants a label's key such as nvidia.com/gpu.product")
    return key
