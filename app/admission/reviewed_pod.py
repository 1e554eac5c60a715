# SPDX-License-Identifier: Apache-2.0
"""The object of one admission review: its pod, the facts read from it, its ruling, and the context of the review.

The limits of what a review answers in words are here too, so that every text keeps to them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from app.admission.json_patch import Operation, apply
from app.knowledge.gpu_resources import Family
from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX, Container, Pod, gpu_amounts, read_pod
from app.policy.match import Ruling
from app.policy.merge_admission import RULES, AdmissionRules
from app.values.reasons import Reason
from app.world.world import World

WARNING_LIMIT = 256
"""Characters of one admission warning: longer ones may be cut (k8s.io/api admission/v1 AdmissionResponse.Warnings,
which asks for 120 if possible)."""
MOST_WARNINGS = 5
"""Warnings of one answer; the API server truncates all of them beyond about 4,096 characters in sum."""
MORE = " and {} more reasons"
DENIAL_LIMIT = 900
"""Characters of a denial. A controller reports it in an Event on the workload, behind some 80 characters of
its own, and an Event has at most 1,024."""

EXEMPT_LABELS = (PREFIX + "infrastructure", PREFIX + "ignore")
"""Namespace labels that exempt a namespace with the value "true". The same label on a pod never exempts."""


def is_exempt(namespace: str, labels: Mapping[str, str], knowledge: Knowledge) -> bool:
    """Tell whether a namespace is exempt, by its label or as vendor infrastructure by its name.

    The API server leaves such namespaces out first, by the namespaceSelector in deploy/base/webhooks.yaml; this decides
    for a request that comes nevertheless (docs/reference/admission.md#exemptions).
    """
    return knowledge.families.is_infrastructure(namespace) or any(labels.get(key) == "true" for key in EXEMPT_LABELS)


class PodForm(Enum):
    """The object under review: a pod, a workload's pod template, or new ephemeral containers or amounts of a pod."""

    Pod = "Pod"
    Template = "PodTemplate"
    DaemonSet = "PodTemplate of a DaemonSet"
    Ephemeral = "EphemeralContainers"
    Resize = "Pod with other CPU or memory"


TEMPLATES = frozenset({PodForm.Template, PodForm.DaemonSet})
RUNNING = frozenset({PodForm.Ephemeral, PodForm.Resize})
"""What is changed in a pod that runs: nothing else of it can be changed, so that nothing else is judged."""


NOT_OF_A_POD = frozenset({("spec", "tolerations"), ("spec", "affinity")})
"""What of a pod's document its record (kube/pods.py) does not have."""


@dataclass(frozen=True, slots=True)
class ReviewContext:
    """The world in which something is reviewed, and what is reviewed.

    `form` is the kind of the object. `existing_ephemeral` are the names of the ephemeral containers that the pod had
    before this request. `old_template` is the pod template before an UPDATE, or None. `queued` is true for a template
    of a new workload that Kueue queues, and counts by its templates. `without_templates` reviews a pod as if no
    ResourceClaimTemplate was there.
    """

    world: World
    form: PodForm = PodForm.Pod
    existing_ephemeral: frozenset[str] = frozenset()
    old_template: Mapping[str, Any] | None = None
    queued: bool = False
    without_templates: bool = False

    def ruling(self, pod: Pod, labels: Mapping[str, str]) -> Ruling:
        """Rule on a pod with all that it asks for, by resources and by claims. `labels` are its namespace's."""
        return self.world.rulings.of(pod, labels, self.world.policies, self.world.state)


@dataclass(frozen=True)
class ReviewedPod:
    """Everything that a mutator or a validator may read.

    `document` is the Pod as earlier mutators left it, or the pod template.
    `rules` are the admission rules of the level under review: enforced, warned or audited.
    `asks_for_gpu` is true where the pod asks for a GPU; to a pod that does not, only the guards apply.
    `has_our_scheduler` is true where the pod's scheduler is one that calls gpu-usher, or the default scheduler.
    """

    document: Mapping[str, Any]
    pod: Pod
    ruling: Ruling
    rules: AdmissionRules
    context: ReviewContext
    namespace_labels: Mapping[str, str]
    asks_for_gpu: bool
    has_our_scheduler: bool

    @cached_property
    def gpu_resources(self) -> tuple[str, ...]:
        """The GPU resources of which some container requests an amount other than zero, sorted by name."""
        names = {
            resource
            for container in self.pod.containers
            for resource in container.resources()
            if container.has_nonzero(resource)
        }
        return tuple(sorted(filter(self.context.world.knowledge.families.of, names)))

    @cached_property
    def _gpus(self) -> frozenset[str]:
        return frozenset(self.gpu_resources)

    @cached_property
    def former_containers(self) -> Mapping[str, Container]:
        """The containers of the pod template before an UPDATE, by name; empty if there was no template.

        Of several containers with one name the first counts. Raises MalformedPod.
        """
        old_template = self.context.old_template
        containers = read_pod(old_template).containers if old_template is not None else ()
        return {container.name: container for container in reversed(containers)}

    def rules_that_differ(self, rules: AdmissionRules) -> frozenset[str]:
        """Name the fields in which other rules differ from those of the review."""
        return frozenset(name for name in RULES if getattr(self.rules, name) != getattr(rules, name))

    def gpu_resources_of(self, container: Container) -> tuple[str, ...]:
        """List the GPU resources of the pod that a container names, including those with an amount of zero."""
        return tuple(name for name in container.resources() if name in self._gpus)

    def with_operations(self, operations: Sequence[Operation]) -> "ReviewedPod":
        """Return the review of the pod with the operations applied; it is read again if they change what is read of it.

        Raises PatchError if an operation does not apply, which is a bug of gpu-usher.
        """
        document = apply(self.document, operations)
        if all(operation.path[:2] in NOT_OF_A_POD for operation in operations):
            return replace(self, document=document)
        containers = (*self.pod.containers, *self.pod.ephemeral)
        known = {id(self.container_object(container)): container for container in containers}
        return replace(self, document=document, pod=read_pod(document, self.pod.namespace, known))

    def gpu_amounts(self) -> tuple[tuple[str, int], ...]:
        """List what the pod asks for as it stands now: (GPU resource, units)."""
        return gpu_amounts(self.pod, self.context.world.knowledge.families.of)

    @cached_property
    def passthrough_amounts(self) -> tuple[tuple[str, int], ...]:
        """The GPUs that the pod asks for by resources of others (Family.elsewhere): (resource, GPUs or shares)."""
        families = self.context.world.knowledge.families
        amounts = gpu_amounts(self.pod, families.passthrough_family)
        return tuple((name, -(-units // row.per_gpu)) for name, units in amounts if (row := families.elsewhere(name)))

    def container_object(self, container: Container) -> Mapping[str, Any]:
        """Return the JSON object of a container."""
        document: Mapping[str, Any] = self.document["spec"][container.list_name][container.index]
        return document

    def gpu_units(self, container: Container) -> int:
        """Count the GPUs, MIG slices or shares that a container asks for; a fraction is rounded up."""
        return sum(-int(-container.requested(name) // 1) for name in self.gpu_resources_of(container))

    def families(self) -> tuple[Family, ...]:
        """List the GPU families of what the pod asks for, by resource or by DRA claim."""
        families = self.context.world.knowledge.families
        asked = (
            *map(families.of, self.gpu_resources),
            *(families.passthrough_family(n) for n, _ in self.passthrough_amounts),
        )
        return tuple(dict.fromkeys((*filter(None, asked), *self.ruling.claimed.families)))

    def gpu_containers(self) -> Iterator[Container]:
        """Iterate over the containers that ask for a GPU in their resources; a DRA claim alone does not count."""
        return (container for container in self.pod.containers if self.gpu_units(container) > 0)


@dataclass(frozen=True, slots=True)
class PodChange:
    """One change that a mutator makes.

    `operations` are JSON Patch operations, applied in order. `record` is the text for the decision annotation.
    `warning` is the text for the user, or None.
    """

    operations: tuple[Operation, ...]
    record: str
    warning: str | None = None


def one_line(text: str, limit: int) -> str:
    """Make a text fit for an admission warning or a status message: printable, on one line, cut with an ellipsis.

    The API server silently drops a warning with a newline or a tab
    (docs/reference/control-plane.md#answers-to-the-api-server). `limit` is in characters.
    """
    clean = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def limited_warnings(warnings: Iterable[str]) -> tuple[str, ...]:
    """Write each warning on one line, and count those beyond MOST_WARNINGS."""
    lines = [one_line(text, WARNING_LIMIT) for text in dict.fromkeys(warnings)]
    if len(lines) <= MOST_WARNINGS:
        return tuple(lines)
    return (*lines[: MOST_WARNINGS - 1], f"and {len(lines) - MOST_WARNINGS + 1} more")


def denial_message(reasons: Sequence[Reason]) -> str:
    """Write the denial's message on one line, a numbered sentence for each reason with its remedy.

    Reasons for which there is no room are counted, so that none is cut short.
    """
    sentences = [refusal.advice for refusal in reasons]
    if len(sentences) > 1:
        sentences = [f"({number}) {sentence}" for number, sentence in enumerate(sentences, 1)]
    text = f"gpu-usher: {sentences[0]}"
    for count, sentence in enumerate(sentences[1:], 1):
        if len(text) + len(sentence) > DENIAL_LIMIT - len(MORE):
            text += MORE.format(len(sentences) - count)
            break
        text += f" {sentence}"
    return one_line(text, DENIAL_LIMIT)
