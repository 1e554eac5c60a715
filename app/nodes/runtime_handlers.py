# SPDX-License-Identifier: Apache-2.0
"""RuntimeClasses and the runtime handlers of nodes, as the objects show them.

A RuntimeClass names a handler, which may have another name than the class. The kubelet publishes the handlers of its
container runtime from Kubernetes 1.31 on (core/v1 NodeStatus.runtimeHandlers); where the list is absent, as with
containerd 1.x, nothing is known about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.nodes.model import NodeClass
from app.values.json_members import member, objects, strings


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """A RuntimeClass: the handler that it names, and the node selector that it adds to its pods."""

    handler: str
    node_selector: Mapping[str, str] = field(default_factory=dict)


def read_runtime_class(document: Mapping[str, Any]) -> RuntimeClass:
    """Read a RuntimeClass (node.k8s.io/v1). The API server wants a handler; without one the class's name stands for it.

    Raises MalformedPod.
    """
    name = member(member(document, "metadata", dict, "") or {}, "name", str, "metadata.") or ""
    selector = strings(member(document, "scheduling", dict, "") or {}, "nodeSelector", "scheduling.")
    return RuntimeClass(member(document, "handler", str, "") or name, selector)


def read_runtime_handlers(status: Mapping[str, Any]) -> frozenset[str] | None:
    """Read the names of a node's runtime handlers, of which "" is the default; None where the node has no list.

    Raises MalformedPod.
    """
    listed = [member(handler, "name", str, "status.runtimeHandlers.") or "" for _, handler in objects(
        status, "runtimeHandlers", "status.")]  # fmt: skip
    return frozenset(listed) if listed else None


def lacks_handler(node_class: NodeClass, handler: str) -> bool:
    """Tell whether a node is known to lack a runtime handler."""
    return node_class.runtime_handlers is not None and handler not in node_class.runtime_handlers
