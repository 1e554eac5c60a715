# SPDX-License-Identifier: Apache-2.0
"""One pod at the door: the object, the facts read from it, the ruling on it, and what is known of the fleet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.admission.patch import Operation, apply
from app.knowledge.tables import Knowledge
from app.nodes import NodeClass
from app.pods import Pod, gpu_amounts, read_pod
from app.policy.match import Ruling
from app.policy.merge import AdmissionRules

WARNING_LIMIT = 120
"""Characters of one admission warning (admission/v1 AdmissionResponse.warnings; longer ones may be cut)."""

Taint = tuple[str, str, str]
"""(key, value, effect)."""


@dataclass(frozen=True, slots=True)
class Kin:
    """Nodes that admission need not tell apart: one class, one product label, the same taints."""

    node_class: NodeClass
    product_label: str | None
    taints: tuple[Taint, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What admission knows of the cluster. `runtime_classes`: None where they could not be listed."""

    kin: tuple[Kin, ...] = ()
    runtime_classes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a mutator or validator may look at. `document` is the Pod as it stands after earlier mutators.

    `rules`: what admission does, at the level (enforced, warned, audited) that is looked at.
    """

    document: Mapping[str, Any]
    pod: Pod
    ruling: Ruling
    rules: AdmissionRules
    fleet: Fleet
    knowledge: Knowledge

    def gpu_resources(self) -> tuple[str, ...]:
        """List the GPU resources of which some container names an amount that is not zero."""
        return tuple(
            name
            for name in self.pod.resources()
            if self.knowledge.families.of(name) and any(each.names(name) for each in self.pod.containers)
        )

    def after(self, operations: Sequence[Operation]) -> "Case":
        """Give the case with the operations applied.

        Raises PatchError if they do not apply: a bug of ours.
        """
        if not operations:
            return self
        document = apply(self.document, operations)
        return replace(self, document=document, pod=read_pod(document, self.pod.namespace))

    def amounts(self) -> tuple[tuple[str, int], ...]:
        """List what the pod asks as it stands now: (GPU resource, units)."""
        return gpu_amounts(self.pod, self.knowledge.families.of)


@dataclass(frozen=True, slots=True)
class Change:
    """What a mutator does: operations that apply in order, what to put on record, what to tell the user (or None)."""

    operations: tuple[Operation, ...]
    record: str
    warning: str | None = None


def one_line(text: str, limit: int) -> str:
    """Make a text fit for a header: printable, on one line, cut with an ellipsis.

    A warning with a newline or tab is dropped silently by the API server (CONTROL_PLANE §3).
    """
    clean = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
