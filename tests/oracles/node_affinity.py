# SPDX-License-Identifier: Apache-2.0
"""Oracle: on which nodes kube-scheduler's NodeAffinity plugin lets a Pod run.

Written from the documented rules (kubernetes.io "Assigning Pods to Nodes"; k8s.io/component-helpers
scheduling/corev1/nodeaffinity; apimachinery pkg/labels Requirement.Matches). Preferred affinity does not count.
"""

import re
from collections.abc import Mapping
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_INT64 = re.compile(r"[+-]?[0-9]+", re.ASCII)
"""The texts that Go's strconv.ParseInt(text, 10, 64) reads, without blanks or underscores."""
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII)
LABEL_VALUE_LENGTH = 63
"""apimachinery validation.LabelValueMaxLength."""


def eligible(pod_document: Mapping[str, Any], node_labels: Mapping[str, str], node_name: str) -> bool:
    """Tell whether nodeSelector and required node affinity allow the Pod on the node."""
    spec = pod_document.get("spec") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if node_labels.get(key) != value:
            return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    selector = affinity.get(REQUIRED)
    if selector is None:
        return True
    return any(term_matches(term, node_labels, node_name) for term in selector.get("nodeSelectorTerms") or [])


def term_matches(term: Mapping[str, Any] | None, node_labels: Mapping[str, str], node_name: str) -> bool:
    """Tell whether one term selects the node; a null or empty term selects none."""
    expressions = (term or {}).get("matchExpressions") or []
    fields = (term or {}).get("matchFields") or []
    if not expressions and not fields:
        return False
    for requirement in expressions:
        if not requirement_matches(requirement, node_labels):
            return False
    return all(field_matches(requirement, node_name) for requirement in fields)


def requirement_matches(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Tell whether labels match one requirement. A requirement that is not valid matches nothing."""
    if not requirement_valid(requirement):
        return False
    key, operator, values = requirement["key"], requirement["operator"], requirement.get("values") or []
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    number, bound = integer(labels.get(key)), integer(values[0])
    if number is None or bound is None:
        return False
    return number > bound if operator == "Gt" else number < bound


def requirement_valid(requirement: Mapping[str, Any]) -> bool:
    """Tell whether operator and values go together (apimachinery labels.NewRequirement)."""
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if not requirement.get("key"):
        return False
    if operator in ("Exists", "DoesNotExist"):
        return values == []
    if operator in ("In", "NotIn"):
        return len(values) > 0 and all(valid_label_value(value) for value in values)
    if operator in ("Gt", "Lt"):
        return len(values) == 1 and integer(values[0]) is not None
    return False


def valid_label_value(value: Any) -> bool:
    """Tell whether a text is a valid label value. Any other value makes the whole requirement invalid."""
    if not isinstance(value, str) or len(value) > LABEL_VALUE_LENGTH:
        return False
    return _LABEL_VALUE.fullmatch(value) is not None


def field_matches(requirement: Mapping[str, Any], node_name: str) -> bool:
    """Tell whether a matchFields requirement selects the node: metadata.name In or NotIn exactly one name."""
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if requirement.get("key") != "metadata.name" or len(values) != 1:
        return False
    if operator == "In":
        return bool(values[0] == node_name)
    if operator == "NotIn":
        return bool(values[0] != node_name)
    return False


def integer(text: Any) -> int | None:
    """Read a 64-bit integer as Go does; None if it is not one."""
    if not isinstance(text, str) or _INT64.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None
