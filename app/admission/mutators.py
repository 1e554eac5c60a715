# SPDX-License-Identifier: Apache-2.0
"""Mutators: what admission repairs in, or adds to, a GPU pod. The table of all mutators stands at the end."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from app.admission.affinity.mutator import MOST_TERMS, prefer_terms, require_terms
from app.admission.affinity.terms import NEED_WEIGHT, Term, Terms, affinity_terms_of
from app.admission.claims.mutator import convert_to_claims
from app.admission.container_defaults import provide_cpu_and_memory, provide_driver_capabilities, provide_shared_memory
from app.admission.cpu_guard import keep_off_gpu_nodes
from app.admission.device_guard import guard_devices, hide_devices, warn_of_runtime_class
from app.admission.json_patch import Operation, append, apply, put
from app.admission.mig_resizing import apply_mig_fallback, right_size
from app.admission.reviewed_pod import PodChange, PodForm, ReviewedPod
from app.admission.runtime_class import set_runtime_class
from app.admission.tolerations import missing_tolerations, taints_of_fitting_nodes, tolerated_keys
from app.admission.unsuitable_fleet import warn_of_unsuitable_fleet
from app.knowledge.resource_names import is_refused, similar_resources
from app.kube.pods import Container
from app.values.json_members import member
from app.values.reasons import join_with_or

Mutator = Callable[[ReviewedPod], Iterator[PodChange]]


def repair_resources(review: ReviewedPod) -> Iterator[PodChange]:
    """Copy requests without limits to limits, and align requests that differ from limits.

    The API server refuses both for extended resources (kubernetes pkg/apis/core/validation/validation.go).
    """
    document: Any = review.document
    for container in review.pod.containers:
        for resource in review.gpu_resources_of(container):
            change = _repair(review, document, container, resource)
            if change is not None:
                document = apply(document, change.operations)
                yield change


def _repair(review: ReviewedPod, document: Any, container: Container, resource: str) -> PodChange | None:
    if resource not in container.limits:
        copied = review.rules.requests_only == "CopyToLimits"
        return _copy(document, container, resource, "requests", "limits") if copied else None
    differs = resource in container.requests and container.limits[resource] != container.requests[resource]
    if differs and review.rules.mismatch == "UseLimits":
        edited = review.rules.requests_only == "CopyToLimits" and _only_requests_edited(review, container, resource)
        return _copy(document, container, resource, *(("requests", "limits") if edited else ("limits", "requests")))
    return None


def _only_requests_edited(review: ReviewedPod, container: Container, resource: str) -> bool:
    """Tell whether an edit of a template changed requests only; the limits may be those that we added."""
    former = review.former_containers.get(container.name)
    if former is None:
        return False
    same = former.limits.get(resource) == container.limits[resource]
    return same and former.requests.get(resource) != container.requests[resource]


def _copy(document: Any, container: Container, resource: str, source: str, target: str) -> PodChange:
    raw = document["spec"][container.list_name][container.index]["resources"][source][resource]
    path = ("spec", container.list_name, str(container.index), "resources", target, resource)
    action = f"{resource} {target} set to {raw} as in {source}"
    no_limit = resource not in container.limits
    why = "the API server refuses requests without limits" if no_limit else "requests must equal limits"
    return PodChange((put(document, path, raw),), f"{container.name}: {action}", f"{container.name}: {action}: {why}")


def set_scheduler(review: ReviewedPod) -> Iterator[PodChange]:
    """Set the schedulerName of the policy, unless the pod chose a scheduler itself."""
    name, present = review.rules.scheduler_name, review.pod.scheduler_name
    replaceable = present == "default-scheduler" or "scheduler_name" in review.rules.override
    if name is not None and present != name and replaceable:
        yield PodChange((put(review.document, ("spec", "schedulerName"), name),), f"schedulerName set to {name}")


def set_priority_class(review: ReviewedPod) -> Iterator[PodChange]:
    """Set priorityClassName unless the pod names one.

    The priority that the API server's own plugin computed for a pod without a class must go: beside a class it would
    be refused (docs/reference/control-plane.md#after-the-webhook).
    """
    name = review.rules.priority_class_name
    present = member(review.document["spec"], "priorityClassName", str, "spec.")
    if name is None or present == name or (present and "priority_class_name" not in review.rules.override):
        return
    computed = [key for key in ("priority", "preemptionPolicy") if key in review.document["spec"]]
    removed = [Operation("remove", ("spec", key)) for key in computed]
    operations = (*removed, put(review.document, ("spec", "priorityClassName"), name))
    yield PodChange(operations, f"priorityClassName set to {name}")


def add_tolerations(review: ReviewedPod) -> Iterator[PodChange]:
    """Add tolerations for the GPU taints of the nodes that could serve the pod.

    A pod template gets none (review.py drops it, in _is_applied): its pods get them. For a DaemonSet's template that is
    too late, since the controller chooses nodes by the template; the user is warned instead.
    """
    missing = missing_tolerations(review)
    operations: list[Operation] = []
    document: Any = review.document
    for toleration in missing:
        operations.append(append(document, ("spec", "tolerations"), toleration))
        document = apply(document, operations[-1:])
    if operations:
        keys = dict.fromkeys(toleration["key"] for toleration in missing)
        listed = ", ".join(keys)
        is_daemon_set = review.context.form is PodForm.DaemonSet
        if is_daemon_set and any(key in keys for key, *_ in taints_of_fitting_nodes(review)):
            problem = f"the template does not tolerate {listed}"
            yield PodChange((), problem, f"{problem}: its pods stay off tainted nodes")
        yield PodChange(tuple(operations), f"toleration added for {listed}")


def warn_of_names(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn of resources that look like a GPU resource and are none: no node offers them, so that the pod waits."""
    knowledge, groups = review.context.knowledge, review.context.fleet.node_groups
    if review.ruling.claimed.classes:
        return  # a DeviceClass of the cluster may serve any name
    names = dict.fromkeys(name for container in review.pod.containers for name in container.resources())
    for name in names:
        offered = (resource for group in groups for resource, _ in group.node_class.offered)
        meant = similar_resources(name, offered, knowledge.families)[:2]
        if meant and not is_refused(name):
            warning = f"no known device plugin offers {name[:40]}, did you mean {join_with_or(meant)}?"
            yield PodChange((), warning, warning)


def warn_of_claims(review: ReviewedPod) -> Iterator[PodChange]:
    """Warn of claims that no device of the cluster can serve, and of tolerations that belong into the claim."""
    claimed = review.ruling.claimed
    if claimed.requests:
        for warning in review.context.claim_warnings(claimed.requests, tolerated_keys(review)):
            yield PodChange((), warning, warning)


def add_affinity(review: ReviewedPod) -> Iterator[PodChange]:
    """Write the pod's needs and preferences as node affinity, as far as labels can express them."""
    mode, demand = review.rules.affinity_mode, review.ruling.demand
    if mode == "Off" or not demand.requests_gpus:
        return
    terms = affinity_terms_of(demand, review.context.fleet, review.rules.affinity_keys, review.context.knowledge)
    preferred = list(terms.preferred)
    if mode == "Required" and terms.required:
        operations = require_terms(review.document, terms.required)
        if operations is None:
            yield PodChange((), TOO_MANY_TERMS, TOO_MANY_TERMS)
        elif operations:
            yield PodChange(
                operations, f"required node affinity added on {_keys(terms.required)}", _zero_groups_warning(terms)
            )
            review = review.with_operations(operations)
    elif mode == "Preferred":
        preferred = [*((NEED_WEIGHT, term) for term in terms.required), *preferred]
    operations = prefer_terms(review.document, preferred)
    if operations:
        required = mode == "Required"
        warning = UNSURE if required and terms.unsure else ONLY_PREFERRED if required and terms.soft else None
        yield PodChange(operations, f"preferred node affinity added on {_keys(term for _, term in preferred)}", warning)


def _zero_groups_warning(terms: Terms) -> str | None:
    """Warn of the labels without which no node of a node group at zero is added for the pod."""
    if not terms.scale_up_labels:
        return None
    return f"a node group at zero nodes grows only if its node template has: {', '.join(terms.scale_up_labels)}"


def _keys(terms: Iterable[Term]) -> str:
    return ", ".join(dict.fromkeys(expression["key"] for term in terms for expression in term))


TOO_MANY_TERMS = (
    f"node affinity not added: it would have more than {MOST_TERMS} terms; the extender still checks every node"
)
UNSURE = "node affinity only prefers what the pod needs: no node has the labels, and a new one may lack them"
ONLY_PREFERRED = "node affinity only prefers what the pod needs: some nodes that fit lack the labels"

MUTATORS: tuple[Mutator, ...] = (
    warn_of_names,
    repair_resources,
    apply_mig_fallback,
    right_size,
    guard_devices,
    hide_devices,
    warn_of_runtime_class,
    set_scheduler,
    set_priority_class,
    provide_cpu_and_memory,
    provide_shared_memory,
    provide_driver_capabilities,
    convert_to_claims,
    set_runtime_class,
    add_tolerations,
    warn_of_claims,
    warn_of_unsuitable_fleet,
    add_affinity,
    keep_off_gpu_nodes,
)
"""The order of execution: each mutator sees the object as the earlier ones left it."""

REPAIRS: frozenset[Mutator] = frozenset({repair_resources})
"""Repairs of what the API server would refuse; pods of other schedulers get them too. All mutators run on a
template, of which review.py applies only these and warnings."""

CHANGING_AMOUNTS: frozenset[Mutator] = REPAIRS | {apply_mig_fallback, right_size, convert_to_claims}
"""Mutators that change which container asks for what; after them the pod gets a new ruling."""

GUARDS: frozenset[Mutator] = frozenset({warn_of_names, guard_devices, hide_devices, warn_of_runtime_class})
"""Mutators for every object that reaches the webhook, whether it asks for a GPU or not."""

FOR_CPU_PODS: frozenset[Mutator] = frozenset({keep_off_gpu_nodes})
"""Mutators for pods that ask for no GPU."""


def mutators_of(review: ReviewedPod) -> tuple[Mutator, ...]:
    """List the mutators that apply to the object, in order."""
    if review.context.form is PodForm.Ephemeral:
        chosen = GUARDS
    elif not review.asks_for_gpu:
        tolerated = review.passthrough_amounts and review.has_our_scheduler
        chosen = GUARDS | FOR_CPU_PODS | (frozenset({add_tolerations}) if tolerated else frozenset())
    elif not review.has_our_scheduler:
        chosen = GUARDS | REPAIRS
    else:
        chosen = frozenset(MUTATORS) - FOR_CPU_PODS
    return tuple(mutator for mutator in MUTATORS if mutator in chosen)
