# SPDX-License-Identifier: Apache-2.0
"""The object of one admission review: its pod, the facts read from it, its ruling, and the context of the review.

The limits of what a review answers in words are here too, so that every text keeps to them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

from app.admission.json_patch import Operation, apply
from app.knowledge.gpu_resources import Families, Family
from app.knowledge.tables import Knowledge
from app.kube.pods import PREFIX, Container, Pod, read_pod
from app.policy.compiled import PolicySet
from app.policy.match import Ruling
from app.policy.merge import AdmissionRules
from app.policy.schema import Action
from app.values.reasons import Reason
from app.world.fleet_facts import NodeGroup, fitting_groups
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
    exempt = namespace in knowledge.families.infrastructure_namespaces
    return exempt or any(labels.get(key) == "true" for key in EXEMPT_LABELS)


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


@dataclass(frozen=True, slots=True)
class RequestedGPUs:
    """The GPUs that a pod requests by resources, as one reading of the pod has them.

    `resources` are the GPU resources of which some container requests an amount other than zero, sorted. `named` are
    the containers with each of these that they name, amounts of zero included. `units` are the GPUs, MIG slices or
    shares of each container that asks for one, by its list and its index; fractions are rounded up. `amounts` are pairs
    of a GPU resource and the units of the whole pod. `passthrough` are those of resources of others (Family.elsewhere):
    (resource, GPUs or shares). `families` are the vendors of all of these.
    """

    resources: tuple[str, ...] = ()
    named: tuple[tuple[Container, str], ...] = ()
    units: Mapping[tuple[str, int], int] = field(default_factory=dict)
    amounts: tuple[tuple[str, int], ...] = ()
    passthrough: tuple[tuple[str, int], ...] = ()
    families: tuple[Family, ...] = ()

    def units_of(self, container: Container) -> int:
        """Count the GPUs, MIG slices or shares that a container asks for."""
        return self.units.get((container.list_name, container.index), 0)


NO_GPUS = RequestedGPUs()


def requested_gpus(pod: Pod, families: Families) -> RequestedGPUs:
    """Read the GPUs that a pod requests by resources."""
    names = {name for container in pod.containers for name in (*container.requests, *container.limits)}
    known, others = families.sorted_out(names)
    if not (known or others):
        return NO_GPUS
    amounts = pod.amounts()
    asked = [name for name in known if any(container.has_nonzero(name) for container in pod.containers)]
    named = [
        (container, name)
        for container in pod.containers
        for name in asked
        if name in container.requests or name in container.limits
    ]
    units: dict[tuple[str, int], int] = {}
    for container, name in named:
        place = container.list_name, container.index
        units[place] = units.get(place, 0) - int(-container.requested(name) // 1)
    passed = [(name, -int(-amounts[name] // row.per_gpu)) for name in others
              if amounts[name] > 0 and (row := families.elsewhere(name))]  # fmt: skip
    return RequestedGPUs(
        resources=tuple(asked),
        named=tuple(named),
        units={place: count for place, count in units.items() if count > 0},
        amounts=tuple((name, -int(-amounts[name] // 1)) for name in asked if amounts[name] > 0),
        passthrough=tuple(passed),
        families=tuple(dict.fromkeys((*(known[name] for name in asked), *(others[name] for name, _ in passed)))),
    )


@dataclass(frozen=True)
class ReviewedPod:
    """Everything that a mutator or a validator may read.

    `document` is the Pod as earlier mutators left it, or the pod template.
    `level` is the mildest action whose rules are applied, and `ruling` and `rules` are those of this level.
    `gpus` are the GPUs that the pod requests by resources, and `families` the vendors of these and of those that it
    claims. `fitting` are the node groups that could serve a pod with GPUs, now or once other pods are gone.
    `asks_for_gpu` is true where the pod asks for a GPU; to a pod that does not, only the guards apply.
    `has_our_scheduler` is true where the pod's scheduler is one that calls gpu-usher, or the default scheduler.
    """

    document: Mapping[str, Any]
    pod: Pod
    ruling: Ruling
    rules: AdmissionRules
    context: ReviewContext
    namespace_labels: Mapping[str, str]
    gpus: RequestedGPUs
    families: tuple[Family, ...]
    fitting: tuple[NodeGroup, ...]
    asks_for_gpu: bool
    has_our_scheduler: bool
    level: Action = Action.Enforce

    def at(self, level: Action) -> "ReviewedPod":
        """Return the review at a milder level; itself where no policy of that action says more."""
        ruling, fitting = ruling_at(self.ruling, level), self.fitting
        if ruling is self.ruling:
            return self
        if ruling.demand is not self.ruling.demand:
            fitting = fitting_groups(ruling.demand, self.context.world.fleet)
        return replace(self, ruling=ruling, rules=ruling.enforced, fitting=fitting, level=level)

    @cached_property
    def former_containers(self) -> Mapping[str, Container]:
        """The containers of the pod template before an UPDATE, by name; empty if there was no template.

        Of several containers with one name the first counts. Raises MalformedPod.
        """
        old_template = self.context.old_template
        containers = read_pod(old_template).containers if old_template is not None else ()
        return {container.name: container for container in reversed(containers)}

    def with_operations(self, operations: Sequence[Operation]) -> "ReviewedPod":
        """Return the review of the pod with the operations applied; it is read again if they change what is read of it.

        There is a new ruling on a pod that asks for other GPUs then. Raises PatchError if an operation does not apply,
        which is a bug of gpu-usher.
        """
        if all(operation.path[:2] in NOT_OF_A_POD for operation in operations):
            return replace(self, document=apply(self.document, operations))
        known, document = self._containers_by_object(), apply(self.document, operations)
        pod = read_pod(document, self.pod.namespace, known)
        gpus = requested_gpus(pod, self.context.world.knowledge.families)
        before, after = ((one.units, one.amounts, one.passthrough) for one in (self.gpus, gpus))
        if before == after and pod.claims == self.pod.claims:
            return replace(self, document=document, pod=pod, gpus=gpus)
        return begin_review(document, pod, self.namespace_labels, self.context, self.level)

    def _containers_by_object(self) -> Mapping[int, Container]:
        spec = self.document.get("spec") or {}
        containers = (*self.pod.containers, *self.pod.ephemeral)
        return {id(spec[container.list_name][container.index]): container for container in containers}

    def container_object(self, container: Container) -> Mapping[str, Any]:
        """Return the JSON object of a container."""
        document: Mapping[str, Any] = self.document["spec"][container.list_name][container.index]
        return document

    def gpu_containers(self) -> Iterator[Container]:
        """Iterate over the containers that ask for a GPU in their resources; a DRA claim alone does not count."""
        return (container for container in self.pod.containers if self.gpus.units_of(container) > 0)


OUR_SCHEDULERS = frozenset({"default-scheduler", "gpu-usher-scheduler"})
"""Schedulers whose pods gpu-usher completes, besides those that policies name; other pods are left alone."""


def ruling_at(ruling: Ruling, level: Action) -> Ruling:
    """Return the ruling in which rules of a milder action are enforced too; the same where they say no more."""
    if level is Action.Enforce:
        return ruling
    rules, demand = ruling.warned if level is Action.Warn else ruling.audited, ruling.demand.warned
    if demand is None and rules == ruling.enforced:
        return ruling
    return replace(ruling, enforced=rules, demand=demand or ruling.demand)


def begin_review(
    document: Mapping[str, Any],
    pod: Pod,
    labels: Mapping[str, str],
    context: ReviewContext,
    level: Action = Action.Enforce,
) -> ReviewedPod:
    """Begin the review of a Pod under the ruling that the policies give on what it asks for.

    `labels` are the namespace's. A pod that asks for zero GPUs is no GPU pod.
    """
    world = context.world
    gpus = requested_gpus(pod, world.knowledge.families)
    ruling = ruling_at(world.rulings.of(pod, labels, world.policies, world.state), level)
    has_gpus = bool(ruling.claimed.classes or gpus.families)
    return ReviewedPod(
        document=document,
        pod=pod,
        ruling=ruling,
        rules=ruling.enforced,
        context=context,
        namespace_labels=labels,
        gpus=gpus,
        families=tuple(dict.fromkeys((*gpus.families, *ruling.claimed.families))),
        fitting=fitting_groups(ruling.demand, world.fleet) if has_gpus else (),
        asks_for_gpu=bool(ruling.claimed.classes or gpus.resources),
        has_our_scheduler=has_our_scheduler(pod, ruling, world.policies),
        level=level,
    )


def has_our_scheduler(pod: Pod, ruling: Ruling, policies: PolicySet) -> bool:
    """Tell whether a pod's scheduler calls gpu-usher or is the default one; other pods are left alone."""
    named = (policy.spec.admission.scheduler_name for policy in policies.policies)
    ours = pod.scheduler_name in OUR_SCHEDULERS or pod.scheduler_name in named
    return ours or "scheduler_name" in ruling.enforced.override


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
    printable = text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
    clean = " ".join(printable.split())
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
