# SPDX-License-Identifier: Apache-2.0
"""The mutators of node affinity: it is ANDed into what the user wrote, and replaces none of it.

CPU pods are kept off GPU nodes, in namespaces that opt in by a label (component cpu-guard).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.admission.affinity_terms import NEED_WEIGHT, Term, Terms, affinity_terms_of, group_fulfils
from app.admission.json_patch import Operation, append, apply, put
from app.admission.reviewed_pod import PodChange, ReviewedPod
from app.kube.pods import PREFIX
from app.nodes.conditions import PRESENT, PRODUCT
from app.policy.facts import MatchExpression
from app.values.json_members import member, objects

NODE_AFFINITY = ("spec", "affinity", "nodeAffinity")
REQUIRED_TERMS_PATH = (*NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
PREFERRED_TERMS_PATH = (*NODE_AFFINITY, "preferredDuringSchedulingIgnoredDuringExecution")
MOST_TERMS = 16
"""Required terms of one pod, after the user's terms are multiplied with ours (docs/reference/admission.md#affinity)."""


def require_terms(
    document: Mapping[str, Any], wanted: Sequence[Term], most: int | None = MOST_TERMS
) -> tuple[Operation, ...] | None:
    """Build the operations that AND the wanted terms into every required term of the user.

    Terms are ORed, so that each of the user's terms is needed once per wanted term: with the first one in its place,
    with the others as copies at the end. Returns None where that would be more than `most`. With None for `most` one
    operation writes all terms, however many they are.
    """
    terms = value_at(document, REQUIRED_TERMS_PATH)
    if not terms:
        if value_at(document, REQUIRED_TERMS_PATH[:-1]) is not None:
            return ()  # a selector without terms selects no node, and the API server refuses it; ours would widen it
        return (put(document, REQUIRED_TERMS_PATH, [{"matchExpressions": list(term)} for term in wanted]),)
    # An empty term selects no node; an expression added to it would make it select some. Others may have all
    # expressions of a wanted one already, by an earlier pass or by the user.
    missing = ([any(_missing(term, one)) for one in wanted] if _selects(term) else [False] for term in terms)
    open_terms = [index for index, lacks in enumerate(missing) if all(lacks)]
    if most is None:
        both = [_with_missing(terms[index], term) for term in wanted for index in open_terms]
        covered = [term for index, term in enumerate(terms) if index not in set(open_terms)]
        return (put(document, REQUIRED_TERMS_PATH, [*covered, *both]),) if both else ()
    if len(terms) + len(open_terms) * (len(wanted) - 1) > most and open_terms:
        return None
    operations: list[Operation] = []
    for index in open_terms:
        for expression in _missing(terms[index], wanted[0]):
            path = (*REQUIRED_TERMS_PATH, str(index), "matchExpressions")
            operations.append(append(apply(document, operations), path, expression))
    for term in wanted[1:]:
        for index in open_terms:
            operations.append(Operation("add", (*REQUIRED_TERMS_PATH, "-"), _with_missing(terms[index], term)))
    return tuple(operations)


def prefer_terms(document: Mapping[str, Any], wanted: Sequence[tuple[int, Term]]) -> tuple[Operation, ...]:
    """Build the operations that add (weight, term) as preferred terms, unless the pod has them."""
    present = value_at(document, PREFERRED_TERMS_PATH) or ()
    operations: list[Operation] = []
    for weight, expressions in wanted:
        term = {"weight": weight, "preference": {"matchExpressions": list(expressions)}}
        if term not in present:
            operations.append(append(apply(document, operations), PREFERRED_TERMS_PATH, term))
    return tuple(operations)


def _selects(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _missing(term: Mapping[str, Any], wanted: Term) -> Iterator[MatchExpression]:
    present = term.get("matchExpressions") or ()
    return (expression for expression in wanted if expression not in present)


def _with_missing(term: Mapping[str, Any], wanted: Term) -> dict[str, Any]:
    present = term.get("matchExpressions") or []
    return {**term, "matchExpressions": [*present, *_missing(term, wanted)]}


def value_at(document: Any, path: tuple[str, ...]) -> Any:
    """Follow members of JSON objects; None where one is missing."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


TOO_MANY_TERMS = (
    f"node affinity not added: it would have more than {MOST_TERMS} terms; the extender still checks every node"
)
UNSURE = "node affinity only prefers what the pod needs: no node has the labels, and a new one may lack them"
ONLY_PREFERRED = "node affinity only prefers what the pod needs: some nodes that fit lack the labels"


def add_affinity(review: ReviewedPod) -> Iterator[PodChange]:
    """Write the pod's needs and preferences as node affinity, as far as labels can express them.

    Of a pod with spec.nodeName only the kubelet reads the affinity, and only what is required
    (k8s.io/kubernetes pkg/kubelet/lifecycle/predicate.go): it gets all of these terms, whichever scheduler it names.
    """
    mode, terms, placed = review.rules.affinity_mode, _terms_of_needs(review), bool(review.pod.node_name)
    unread = placed or review.context.queued  # Kueue reads no preference of a template, and the pods get theirs
    preferred = [] if unread else list(terms.preferred)
    if review.context.queued and review.rules.queued_templates is None:
        yield from _warn_of_flavors(review, terms.required if mode == "Required" else ())
    yield from _warn_of_platform(review, terms)
    if mode == "Required" and terms.required:
        operations = require_terms(review.document, terms.required, None if placed else MOST_TERMS)
        if operations is None:
            yield PodChange((), TOO_MANY_TERMS, TOO_MANY_TERMS)
        elif operations:
            yield PodChange(
                operations, f"required node affinity added on {_keys(terms.required)}", _zero_groups_warning(terms)
            )
            review = review.with_operations(operations)
    elif mode == "Preferred" and not unread:
        preferred = [*((NEED_WEIGHT, term) for term in terms.required), *preferred]
    operations = prefer_terms(review.document, preferred)
    if operations:
        required = mode == "Required"
        warning = UNSURE if required and terms.unsure else ONLY_PREFERRED if required and terms.soft else None
        yield PodChange(operations, f"preferred node affinity added on {_keys(term for _, term in preferred)}", warning)


def _warn_of_platform(review: ReviewedPod, terms: Terms) -> Iterator[PodChange]:
    """Warn of a policy's node selector by keys for which the platform of all nodes refuses a pod.

    It names the needs that are left out of the affinity for this reason.
    """
    allowed = review.context.world.fleet.selectable
    if terms.left_out:
        needs = " and ".join(terms.left_out)
        left_out = f"node affinity leaves out {needs}: the platform refuses pods that select by labels for it"
        warning = f"{left_out}; only a scheduler that asks gpu-usher checks it"
        yield PodChange((), left_out, warning if terms.told else None)
    if allowed is not None and (refused := {item["key"] for term in terms.required for item in term} - allowed):
        warning = f"a policy selects nodes by {', '.join(sorted(refused))}, for which the platform refuses the pod"
        yield PodChange((), warning, warning)


def _terms_of_needs(review: ReviewedPod) -> Terms:
    """Write the terms of the pod's needs; of a pod whose node is chosen, none about a state that passes.

    That are a pod with spec.nodeName, whose terms say nothing that is only inferred from images either, and one of a
    DaemonSet. Operators validate a node by such pods while its driver is upgraded (NVIDIA/gpu-operator
    cmd/nvidia-validator/main.go, manifests/state-dra-validation).
    """
    demand, context = review.ruling.demand, review.context
    if review.rules.affinity_mode == "Off" or not demand.requests_gpus:
        return Terms()
    if review.pod.node_name:
        stated = tuple(need for need in demand.cuda if not need.inferred)
        demand = replace(demand, cuda=stated, platforms=(), builds=())
    lasting = context.queued or bool(review.pod.node_name) or _belongs_to_daemon_set(review)
    return affinity_terms_of(demand, context.world.fleet, review.rules.affinity_keys, context.world.knowledge, lasting)


def _warn_of_flavors(review: ReviewedPod, required: tuple[Term, ...]) -> Iterator[PodChange]:
    """Warn of needs that Kueue does not see in the template, where nodes that offer the resources differ in them."""
    document, fleet = review.document, review.context.world.fleet
    if not required or not require_terms(document, required):
        return
    demand = review.ruling.demand
    able = [
        group
        for group in fleet.node_groups
        if all(group.node_class.allocatable(name) >= amount for name, amount in demand.resources)
    ]
    suited = [group for group in able if any(group_fulfils(group, term) for term in required)]
    if not suited or len(suited) == len(able):
        return
    products = {group.label(PRODUCT) for group in suited}
    others = {group.label(PRODUCT) for group in able if group not in suited}
    [product, *more] = sorted(map(str, products))
    if more or products & others or None in products:
        wanted = f"node affinity on {_keys(required)}"
    else:
        wanted = f"nodeSelector {PRODUCT}: {product}"
    warning = f"Kueue chooses the flavor by this template: add {wanted}, or set policy queuedTemplates: Write"
    yield PodChange((), warning, warning)


FROM_ZERO = "a node group at zero nodes grows only if its node template has: "


def _zero_groups_warning(terms: Terms) -> str | None:
    """Warn of the labels without which no node of a node group at zero is added for the pod."""
    if not terms.scale_up_labels:
        return None
    return f"{FROM_ZERO}{', '.join(terms.scale_up_labels)}"


def _keys(terms: Iterable[Term]) -> str:
    return ", ".join(dict.fromkeys(expression["key"] for term in terms for expression in term))


CPU_GUARD = PREFIX + "cpu-guard"
"""Namespace label; its value, "preferred" or "required", is the strength of the node affinity."""
CPU_GUARD_WEIGHT = 100
"""Weight of the preferred term; 100 is the highest that Kubernetes allows."""
NO_GPU = ({"key": PRESENT, "operator": "DoesNotExist"},)


def keep_off_gpu_nodes(review: ReviewedPod) -> Iterator[PodChange]:
    """Add node affinity for nodes without GPUs."""
    strength = _strength_of_cpu_guard(review)
    if strength is None:
        return
    operations = (
        require_terms(review.document, [NO_GPU])
        if strength == "required"
        else prefer_terms(review.document, [(CPU_GUARD_WEIGHT, NO_GPU)])
    )
    if operations:
        yield PodChange(operations, f"{strength} node affinity added: no GPU node")


def _strength_of_cpu_guard(review: ReviewedPod) -> str | None:
    """Give the strength that the namespace's label sets; None for a pod that the guard leaves alone.

    These are the pod of a DaemonSet and a pod with spec.nodeName, whose node is chosen already, and a pod that claims
    devices of any kind or gets GPUs by passthrough, since it must run where those devices are.
    """
    strength = review.namespace_labels.get(CPU_GUARD)
    if (
        strength not in ("preferred", "required")
        or review.pod.node_name
        or _needs_devices(review)
        or _belongs_to_daemon_set(review)
    ):
        return None
    return strength


def _needs_devices(review: ReviewedPod) -> bool:
    resources = (resource for container in review.pod.containers for resource in container.resources())
    return bool(review.pod.claims or review.gpus.passthrough) or any(
        map(review.context.world.knowledge.families.implicit_class, resources)
    )


def _belongs_to_daemon_set(review: ReviewedPod) -> bool:
    metadata = member(review.document, "metadata", dict, "") or {}
    return any(owner.get("kind") == "DaemonSet" for _, owner in objects(metadata, "ownerReferences", "metadata."))


def required_terms(review: ReviewedPod) -> tuple[Term, ...]:
    """List the ORed terms of required node affinity that the mutators above write into a pod with the ruling on it."""
    if not review.asks_for_gpu:
        return (NO_GPU,) if _strength_of_cpu_guard(review) == "required" else ()
    written = (review.has_our_scheduler or review.pod.node_name) and review.rules.affinity_mode == "Required"
    return _terms_of_needs(review).required if written else ()
