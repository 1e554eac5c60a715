# SPDX-License-Identifier: Apache-2.0
"""Warnings about claims at admission: devices that no node has, and taints that a claim lacks a toleration for.

A claim is warned of only where every selector is judged for every kind of device (app/dra/device_kinds.py). It is never
refused: a node that an autoscaler adds may bring the device.
"""

from collections.abc import Collection, Iterator

from app.dra.device_kinds import DeviceKind, DeviceKinds, may_select
from app.dra.words import unmet
from app.kube.claimed_devices import DeviceChoice, DeviceChoices
from app.kube.device_facts import NVIDIA_DRIVER
from app.values.reasons import counted

MOST_SHOWN = 3
"""Taint keys that one warning names."""


def claim_warnings(
    fleet: Collection[DeviceKinds], requests: tuple[DeviceChoices, ...], tolerated_keys: Collection[str]
) -> tuple[str, ...]:
    """Say what keeps requests from every device of the fleet, or from devices whose taints the policies tolerate.

    `fleet` are the kinds of devices of all nodes, one object for nodes that are alike. `tolerated_keys` are the keys of
    taints that policies tolerate on nodes. A request is warned of only if none of its alternatives can be served.
    """
    if not any(kind.facts for of_node in fleet for kind in of_node.kinds):
        return ()
    return tuple(
        dict.fromkeys(warning for request in requests for warning in _of_request(fleet, request, tolerated_keys))
    )


def _of_request(fleet: Collection[DeviceKinds], request: DeviceChoices, keys: Collection[str]) -> Iterator[str]:
    problems = [_impossible(fleet, choice) for choice in request]
    if request and all(problems):
        yield problems[0]
        return
    taints = {
        taint.key: None
        for choice in request
        for of_node in fleet
        for position in of_node.select(choice, tolerate_all=True)
        if position not in of_node.select(choice)
        for taint in of_node.kinds[position].taints
        if taint.key in keys
    }
    if taints:
        named = ", ".join(list(taints)[:MOST_SHOWN])
        yield f"claim: device taint {named} is tolerated for nodes by policy, but not by the claim's own tolerations"


def _impossible(fleet: Collection[DeviceKinds], choice: DeviceChoice) -> str:
    """Say why a choice can be served on no node, whatever is free there; "" if it can, or if that is not known."""
    selectors = next((of_node.class_selectors(choice.device_class) for of_node in fleet), None)
    if selectors is None:
        return ""
    kinds = [kind for of_node in fleet for kind in of_node.kinds]
    left = [kind for kind in kinds if all(may_select(selector, kind.device) for selector in selectors)]
    if not left:
        ours = any(NVIDIA_DRIVER in selector for selector in selectors)
        return f"claim: no device in the cluster is of DeviceClass {choice.device_class}" if ours else ""
    return _unselected(choice, left) or _too_many(fleet, choice)


def _unselected(choice: DeviceChoice, left: list[DeviceKind]) -> str:
    """Say which selector leaves no device of the class, by what it wants; "" if some device is left."""
    for selector in choice.selectors:
        before, left = left, [kind for kind in left if may_select(selector, kind.device)]
        if not left:
            wants = unmet(selector, [kind.device for kind in before])
            return f"claim: no device of DeviceClass {choice.device_class} in the cluster has {wants}"
    return ""


def _too_many(fleet: Collection[DeviceKinds], choice: DeviceChoice) -> str:
    most = max(
        sum(of_node.kinds[kind].number for kind in of_node.select(choice, tolerate_all=True)) for of_node in fleet
    )
    if choice.count is None or choice.count <= most:
        return ""
    devices = counted(choice.count, "device")
    return f"claim: wants {devices} of DeviceClass {choice.device_class}, and no node has more than {most}"
