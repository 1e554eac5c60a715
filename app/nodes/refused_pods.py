# SPDX-License-Identifier: Apache-2.0
"""What a node tells about a pod that its kubelet refused."""

from app.kube.finished_pods import FinishedPod
from app.nodes.model import Node


def explained_by_node(pod: FinishedPod, node: Node | None) -> FinishedPod:
    """Return the pod with devices that the node's device plugin has withdrawn as the cause, where there are some."""
    if node is None or not (pod.chosen and node.node_class.unhealthy_units):
        return pod
    withdrawn = ", ".join(
        f"{units} of {node.node_class.capacity(resource)} {resource}"
        for resource, units in node.node_class.unhealthy_units
    )
    return pod.because(f"the device plugin has withdrawn {withdrawn} on that node")
