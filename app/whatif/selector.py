# SPDX-License-Identifier: Apache-2.0
"""Label selectors in the syntax of kubectl's -l (k8s.io/apimachinery pkg/labels selector.go Parse)."""

import re

from app.values.errors import BadInput
from app.values.label_requirements import Requirement, label_requirement

_PART = re.compile(r"\s*(?:([^\s,()=!]+)\s+(in|notin)\s*\(([^)]*)\)|([^,()]+))\s*(?:,|$)")


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Read a selector such as `pool=gpu,zone in (a,b),!spot`; an empty one selects everything.

    Raises BadInput.
    """
    requirements, position = [], 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise BadInput(f"selector: got {text[:80]!r}, wants such as pool=gpu,zone in (a,b),!spot")
        key, operator, values, simple = match.groups()
        if key:
            listed = [value.strip() for value in values.split(",")]
            requirements.append(label_requirement(key, "In" if operator == "in" else "NotIn", listed))
        else:
            requirements.append(_simple(simple.strip()))
        position = match.end()
    return tuple(requirements)


def _simple(text: str) -> Requirement:
    for sign, operator in (("!=", "NotIn"), ("==", "In"), ("=", "In")):
        key, present, value = text.partition(sign)
        if present:
            return label_requirement(_key(key), operator, (value.strip(),))
    if text.startswith("!"):
        return label_requirement(_key(text[1:]), "DoesNotExist")
    return label_requirement(_key(text), "Exists")


def _key(text: str) -> str:
    key = text.strip()
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?", key):
        raise BadInput(f"selector: got key {key[:60]!r}, wants a label's key such as nvidia.com/gpu.product")
    return key
