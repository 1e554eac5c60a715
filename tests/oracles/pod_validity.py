# SPDX-License-Identifier: Apache-2.0
"""Oracle: kube-apiserver's validation of the parts of a Pod besides resources that a webhook may change.

It covers tolerations, node affinity, environment, volumes and mounts, names, labels and annotations, from
pkg/apis/core/validation/validation.go and apimachinery pkg/util/validation.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.oracles.node_affinity import REQUIRED, integer, valid_label_value
from tests.oracles.quantities import quantity

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
ANNOTATIONS_BYTES = 256 * 1024
"""apimachinery validation.TotalAnnotationSizeLimitB, for keys and values together."""
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)

Found = Iterator[str]


def other_problems(pod: Mapping[str, Any]) -> list[str]:
    """List all problems that are not about amounts of resources."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    messages = [*_annotations(metadata.get("annotations") or {}), *_labels(metadata.get("labels") or {})]
    messages += _class_names(spec)
    messages += _tolerations(spec.get("tolerations") or [])
    messages += _node_affinity((spec.get("affinity") or {}).get("nodeAffinity") or {})
    messages += _volumes(spec.get("volumes") or [])
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    for list_name in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(list_name) or []):
            messages += _container(f"spec.{list_name}[{index}]", container, volumes)
    return messages


def qualified(key: Any) -> bool:
    """Tell whether a text is a valid key of a label or annotation, [subdomain/]name."""
    if not isinstance(key, str) or key.count("/") > 1:
        return False
    prefix, slash, name = key.rpartition("/")
    if slash and not subdomain(prefix):
        return False
    return len(name) <= 63 and _NAME.fullmatch(name) is not None


def subdomain(name: Any) -> bool:
    """Tell whether a text is a DNS-1123 subdomain."""
    return isinstance(name, str) and len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def _annotations(annotations: Mapping[str, Any]) -> Found:
    for key, value in annotations.items():
        if not qualified(key.lower()):
            yield f"metadata.annotations[{key}]: no qualified name"
        if not isinstance(value, str):
            yield f"metadata.annotations[{key}]: no string"
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES:
        yield f"metadata.annotations: {size} bytes are too long"


def _labels(labels: Mapping[str, Any]) -> Found:
    for key, value in labels.items():
        if not qualified(key) or not valid_label_value(value):
            yield f"metadata.labels[{key}]: no label"


def _class_names(spec: Mapping[str, Any]) -> Found:
    for key in ("runtimeClassName", "priorityClassName"):
        if spec.get(key) not in (None, "") and not subdomain(spec[key]):
            yield f"spec.{key}: no DNS subdomain"
    if spec.get("runtimeClassName") == "":
        yield "spec.runtimeClassName: no DNS subdomain"
    if not isinstance(spec.get("schedulerName", ""), str | None):
        yield "spec.schedulerName: no string"
    for key, value in (spec.get("nodeSelector") or {}).items():
        if not qualified(key) or not valid_label_value(value):
            yield f"spec.nodeSelector[{key}]: no label"


def _tolerations(tolerations: list[Any]) -> Found:
    for index, toleration in enumerate(tolerations):
        where = f"spec.tolerations[{index}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
        value, effect = toleration.get("value") or "", toleration.get("effect") or ""
        if key and not qualified(key):
            yield f"{where}.key: no label name"
        if not key and operator != "Exists":
            yield f"{where}.operator: must be Exists when key is empty"
        if operator not in ("Equal", "Exists"):
            yield f"{where}.operator: {operator} is not supported"
        if operator == "Exists" and value:
            yield f"{where}.value: must be empty when operator is Exists"
        if operator == "Equal" and not valid_label_value(value):
            yield f"{where}.value: no label value"
        if effect and effect not in EFFECTS:
            yield f"{where}.effect: {effect} is not supported"
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            yield f"{where}.effect: must be NoExecute when tolerationSeconds is set"


def _node_affinity(affinity: Mapping[str, Any]) -> Found:
    required = affinity.get(REQUIRED)
    if required is not None:
        where, terms = f"{REQUIRED}.nodeSelectorTerms", required.get("nodeSelectorTerms") or []
        if not terms:
            yield f"{where}: must have at least one node selector term"
        for index, term in enumerate(terms):
            yield from _term(f"{where}[{index}]", term)
    for index, preferred in enumerate(affinity.get(PREFERRED) or []):
        weight = preferred.get("weight")
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= 100:
            yield f"{PREFERRED}[{index}].weight: must be in the range 1-100"
        yield from _term(f"{PREFERRED}[{index}].preference", preferred.get("preference") or {})


def _term(where: str, term: Mapping[str, Any]) -> Found:
    for index, requirement in enumerate(term.get("matchExpressions") or []):
        yield from _expression(f"{where}.matchExpressions[{index}]", requirement)
    for index, requirement in enumerate(term.get("matchFields") or []):
        if requirement.get("key") != "metadata.name":
            yield f"{where}.matchFields[{index}].key: not a valid field selector key"
        if requirement.get("operator") not in ("In", "NotIn") or len(requirement.get("values") or []) != 1:
            yield f"{where}.matchFields[{index}]: wants In or NotIn and one value"


def _expression(where: str, requirement: Mapping[str, Any]) -> Found:
    operator, values = requirement.get("operator"), requirement.get("values") or []
    if not qualified(requirement.get("key")):
        yield f"{where}.key: no label name"
    if operator in ("In", "NotIn"):
        if not values:
            yield f"{where}.values: must be specified when operator is In or NotIn"
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            yield f"{where}.values: may not be specified when operator is Exists or DoesNotExist"
    elif operator in ("Gt", "Lt"):
        if len(values) != 1 or integer(values[0]) is None:
            yield f"{where}.values: must be one integer when operator is Gt or Lt"
    else:
        yield f"{where}.operator: not a valid selector operator"
    for value in values:
        if not valid_label_value(value):
            yield f"{where}.values: {value} is no label value"


def _volumes(volumes: list[Any]) -> Found:
    seen: set[Any] = set()
    for index, volume in enumerate(volumes):
        name = volume.get("name")
        if not isinstance(name, str) or len(name) > 63 or _DNS_LABEL.fullmatch(name) is None:
            yield f"spec.volumes[{index}].name: no DNS label"
        if name in seen:
            yield f"spec.volumes[{index}].name: Duplicate value {name}"
        seen.add(name)
        limit = (volume.get("emptyDir") or {}).get("sizeLimit")
        size = quantity(limit)
        if limit is not None and (size is None or size < 0):
            yield f"spec.volumes[{index}].emptyDir.sizeLimit: {limit!r} is no quantity of zero or more"


def _container(where: str, container: Mapping[str, Any], volumes: set[Any]) -> Found:
    for index, variable in enumerate(container.get("env") or []):
        name = variable.get("name")
        if not isinstance(name, str) or not name or "=" in name:
            yield f"{where}.env[{index}].name: no name of a variable"
        if variable.get("value") and variable.get("valueFrom"):
            yield f"{where}.env[{index}].valueFrom: may not be specified when value is not empty"
    paths: set[Any] = set()
    for index, mount in enumerate(container.get("volumeMounts") or []):
        path = mount.get("mountPath")
        if mount.get("name") not in volumes:
            yield f"{where}.volumeMounts[{index}].name: Not found {mount.get('name')}"
        if not path:
            yield f"{where}.volumeMounts[{index}].mountPath: Required value"
        if path in paths:
            yield f"{where}.volumeMounts[{index}].mountPath: must be unique, {path} is not"
        paths.add(path)
