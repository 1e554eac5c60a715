# SPDX-License-Identifier: Apache-2.0
"""What a node tells about a pod that its kubelet refused, and what such a pod tells about its node."""

import re
from collections.abc import Mapping
from typing import Any

from app.knowledge.tables import Knowledge
from app.kube.finished_pods import FAILED, FinishedPod, failure_of
from app.nodes.model import Node
from app.values.json_members import member


def explained_by_node(pod: FinishedPod, node: Node | None) -> FinishedPod:
    """Return the pod with devices that the node's device plugin has withdrawn as the cause, where there are some.

    They are those of the resource that the kubelet names. A kubelet keeps resources that its node no longer has, with
    all devices withdrawn (seen on kubelet 1.36 after a MIG layout changed).
    """
    if node is None or not (pod.chosen and node.node_class.unhealthy_units):
        return pod
    withdrawn = ", ".join(
        f"{units} of {node.node_class.capacity(resource)} {resource}"
        for resource, units in node.node_class.unhealthy_units
        if re.search(rf"{re.escape(resource)}(?![\w/-]|\.\w)", f"{pod.ending.reason} {pod.ending.message}")
    )
    if not withdrawn:
        return pod
    return pod.because(f"the device plugin has withdrawn {withdrawn} on that node")


def node_that_gives_one_unit(document: Mapping[str, Any], knowledge: Knowledge) -> str | None:
    """Name the node whose device plugin refused several units of a shared GPU to a pod; None for any other pod.

    Raises MalformedPod.
    """
    status = document.get("status")
    if not isinstance(status, dict) or status.get("phase") != FAILED or not failure_of(status, knowledge).one_unit:
        return None
    return member(member(document, "spec", dict, "") or {}, "nodeName", str, "spec.") or None
