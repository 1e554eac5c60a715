# SPDX-License-Identifier: Apache-2.0
"""What a node tells about a pod that its kubelet refused."""

import re

from app.kube.finished_pods import FinishedPod
from app.nodes.model import Node


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
