# SPDX-License-Identifier: Apache-2.0
"""Oracle: what kube-apiserver does to a patched Pod before it calls a webhook again (reinvocationPolicy IfNeeded).

It decodes and defaults the Pod: requests from limits, canonical quantities, without empty members. Then the in-tree
plugins change it, such as the RuntimeClass plugin (seen on a real API server, recorded in tests/contract).
"""

from typing import Any

from tests.oracles.quantities import quantity

Part = dict[str, Any]


def stored(pod: Part) -> Part:
    """Return the Pod as decoded and defaulted, without changing the argument."""
    spec = {key: value for key, value in pod["spec"].items() if value is not None}
    for list_name in ("initContainers", "containers"):
        if list_name in spec:
            spec[list_name] = [_container(container) for container in spec[list_name]]
    if "tolerations" in spec:
        spec["tolerations"] = [_without_empty(toleration) for toleration in spec["tolerations"]]
    return {**pod, "spec": spec}


def with_runtime_class(pod: Part) -> Part:
    """Return the Pod with the overhead, nodeSelector and toleration that the RuntimeClass plugin adds for its class."""
    spec = pod["spec"]
    if not spec.get("runtimeClassName"):
        return pod
    toleration = {"key": "runtime", "operator": "Exists"}
    merged = {
        "overhead": {"cpu": "100m"},
        "nodeSelector": {**(spec.get("nodeSelector") or {}), "runtime": "present"},
        "tolerations": [*(spec.get("tolerations") or []), toleration],
    }
    return {**pod, "spec": {**spec, **merged}}


def _container(container: Part) -> Part:
    stored_container = {**container, "env": [_without_empty(variable) for variable in container.get("env") or []]}
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    sides = {"limits": limits, "requests": {**limits, **(resources.get("requests") or {})}}
    stored_container["resources"] = {side: _canonical(amounts) for side, amounts in sides.items() if amounts}
    return stored_container


def _canonical(amounts: Part) -> Part:
    """Write integers as decimal digits, and leave other values unchanged."""
    values = {name: quantity(written) for name, written in amounts.items()}
    whole = {name: str(int(value)) for name, value in values.items() if value is not None and value.denominator == 1}
    return {**amounts, **whole}


def _without_empty(part: Part) -> Part:
    return {key: value for key, value in part.items() if value not in (None, "")}
