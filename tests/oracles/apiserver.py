# SPDX-License-Identifier: Apache-2.0
"""Oracle: what kube-apiserver makes of a patched Pod before it calls a webhook again (reinvocationPolicy IfNeeded).

It decodes and defaults: requests from limits, canonical quantities, empty members dropped; then in-tree plugins
speak, the RuntimeClass plugin among them (seen on a real one, recorded in tests/contract).
"""

from typing import Any

from tests.oracles.quantities import quantity

Part = dict[str, Any]


def stored(pod: Part) -> Part:
    """Give the Pod as decoded and defaulted; the input stays as it is."""
    spec = {key: value for key, value in pod["spec"].items() if value is not None}
    for list_name in ("initContainers", "containers"):
        if list_name in spec:
            spec[list_name] = [_container(each) for each in spec[list_name]]
    if "tolerations" in spec:
        spec["tolerations"] = [_without_empty(each) for each in spec["tolerations"]]
    return {**pod, "spec": spec}


def with_runtime_class(pod: Part) -> Part:
    """Give the Pod after the RuntimeClass plugin has added overhead, nodeSelector and toleration of its class."""
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
    found = {**container, "env": [_without_empty(each) for each in container.get("env") or []]}
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    sides = {"limits": limits, "requests": {**limits, **(resources.get("requests") or {})}}
    found["resources"] = {side: _canonical(amounts) for side, amounts in sides.items() if amounts}
    return found


def _canonical(amounts: Part) -> Part:
    """Write integers as decimal digits; others are left as they are."""
    values = {name: quantity(written) for name, written in amounts.items()}
    whole = {name: str(int(value)) for name, value in values.items() if value is not None and value.denominator == 1}
    return {**amounts, **whole}


def _without_empty(part: Part) -> Part:
    return {key: value for key, value in part.items() if value not in (None, "")}
