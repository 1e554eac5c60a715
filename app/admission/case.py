# SPDX-License-Identifier: Apache-2.0
"""One object at the door: its pod, the facts read from it, the ruling on it, and what is known of the fleet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from app.admission.fleet_facts import FleetFacts
from app.admission.json_patch import Operation, apply
from app.knowledge.families import Family
from app.knowledge.tables import Knowledge
from app.kube.pods import Container, Pod, gpu_amounts, read_pod
from app.kube.resource_claims import NOTHING_CLAIMED, ClaimedDevices
from app.policy.match import Ruling
from app.policy.merge_admission import AdmissionRules

WARNING_LIMIT = 120
"""Characters of one admission warning (admission/v1 AdmissionResponse.warnings; longer ones may be cut)."""


class PodForm(Enum):
    """What is reviewed: a pod, the template that a workload makes pods of, or a running pod's new ephemeral ones."""

    Pod = "Pod"
    Template = "PodTemplate"
    DaemonSet = "PodTemplate of a DaemonSet"
    Ephemeral = "EphemeralContainers"


TEMPLATES = frozenset({PodForm.Template, PodForm.DaemonSet})


@dataclass(frozen=True)
class ReviewedPod:
    """Everything a mutator or validator may look at. `document` is the Pod as it stands after earlier mutators.

    `rules`: what admission does, at the level (enforced, warned, audited) that is looked at. `form`: Template where
    `document` is a pod template. `asks`: it asks for a GPU; one that does not is only guarded. `served`: its scheduler
    is one that asks us, or the default one. `settled`: names of ephemeral containers that are there already.
    `before`: the template as it was, on UPDATE. `claimed`: what it asks of DRA.
    """

    document: Mapping[str, Any]
    pod: Pod
    ruling: Ruling
    rules: AdmissionRules
    fleet: FleetFacts
    knowledge: Knowledge
    form: PodForm = PodForm.Pod
    asks: bool = True
    served: bool = True
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    before: Mapping[str, Any] | None = None
    claimed: ClaimedDevices = NOTHING_CLAIMED

    @cached_property
    def gpu_resources(self) -> tuple[str, ...]:
        """The GPU resources of which some container names an amount that is not zero."""
        named = {name for each in self.pod.containers for name in each.resources() if each.names(name)}
        return tuple(sorted(filter(self.knowledge.families.of, named)))

    @cached_property
    def _gpus(self) -> frozenset[str]:
        return frozenset(self.gpu_resources)

    @cached_property
    def former(self) -> Mapping[str, Container]:
        """The containers of the template as it was, by name; of one name the first. Empty where it was none.

        Raises MalformedPod.
        """
        containers = read_pod(self.before).containers if self.before is not None else ()
        return {each.name: each for each in reversed(containers)}

    def gpus_of(self, container: Container) -> tuple[str, ...]:
        """List the GPU resources of the pod that a container names, be it with zero."""
        return tuple(name for name in container.resources() if name in self._gpus)

    def after(self, operations: Sequence[Operation]) -> "ReviewedPod":
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

    @cached_property
    def handed_on(self) -> tuple[tuple[str, int], ...]:
        """What the pod asks of GPUs that are handed on to a virtual machine: (resource, units)."""
        return gpu_amounts(self.pod, self.knowledge.families.hands_on)

    def raw(self, container: Container) -> Mapping[str, Any]:
        """Give a container as it stands in the object."""
        found: Mapping[str, Any] = self.document["spec"][container.list_name][container.index]
        return found

    def units(self, container: Container) -> int:
        """Count the GPUs (slices, shares) that a container asks for."""
        return sum(-int(-container.asks(name) // 1) for name in self.gpus_of(container))

    def families(self) -> tuple[Family, ...]:
        """List the families of what the pod asks for, by resource or by claim."""
        asked = map(self.knowledge.families.of, self.gpu_resources)
        return tuple(dict.fromkeys((*filter(None, asked), *self.claimed.families)))

    def gpu_containers(self) -> Iterator[Container]:
        """Iterate over the containers that ask for a GPU in their resources."""
        return (each for each in self.pod.containers if self.units(each) > 0)


@dataclass(frozen=True, slots=True)
class PodChange:
    """What a mutator does: operations that apply in order, what to put on record, what to tell the user (or None)."""

    operations: tuple[Operation, ...]
    record: str
    warning: str | None = None


def one_line(text: str, limit: int) -> str:
    """Make a text fit for a header: printable, on one line, cut with an ellipsis.

    A warning with a newline or tab is dropped silently by the API server
    (docs/reference/control-plane.md#answers-to-the-api-server).
    """
    clean = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
