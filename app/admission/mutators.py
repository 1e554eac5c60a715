# SPDX-License-Identifier: Apache-2.0
"""The table of the mutators: which of them run on an object, in which order, and which of their changes are applied.

The module of its subject has each mutator: what containers request (requested_resources.py), what a pod leaves open
(pod_defaults.py), devices without a request (device_guard.py), the runtime class, claims, tolerations, node
affinity, and warnings of what the fleet cannot serve (fleet_warnings.py).
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from operator import attrgetter

from app.admission.claim_conversion import convert_to_claims
from app.admission.device_guard import guard_devices, hide_devices, warn_of_runtime_class
from app.admission.fleet_warnings import warn_of_claims, warn_of_names, warn_of_unsuitable_fleet
from app.admission.node_affinity import add_affinity, keep_off_gpu_nodes
from app.admission.pod_defaults import (
    equalize_memory,
    provide_cpu_and_memory,
    provide_driver_capabilities,
    provide_shared_memory,
    set_priority_class,
    set_scheduler,
)
from app.admission.requested_resources import apply_mig_fallback, choose_smallest_slice, repair_resources
from app.admission.reviewed_pod import PodChange, PodForm, ReviewedPod
from app.admission.runtime_class import set_runtime_class
from app.admission.tolerations import add_tolerations
from app.policy.merge import AdmissionRules

Mutator = Callable[[ReviewedPod], Iterator[PodChange]]

MUTATOR_RULES: tuple[tuple[Mutator, str | None], ...] = (
    (warn_of_names, None),
    (repair_resources, None),
    (apply_mig_fallback, None),
    (choose_smallest_slice, "right_sizing"),
    (guard_devices, None),
    (hide_devices, None),
    (warn_of_runtime_class, None),
    (set_scheduler, "scheduler_name"),
    (set_priority_class, "priority_class_name"),
    (provide_cpu_and_memory, "defaults"),
    (equalize_memory, "memory_requests"),
    (provide_shared_memory, "defaults"),
    (provide_driver_capabilities, "defaults"),
    (convert_to_claims, "convert_to_claims"),
    (set_runtime_class, None),
    (add_tolerations, "tolerate"),
    (warn_of_claims, None),
    (warn_of_unsuitable_fleet, None),
    (add_affinity, None),
    (keep_off_gpu_nodes, None),
)
"""The order of execution: each mutator sees the object as the earlier ones left it. Beside each is the field of
AdmissionRules without which it changes nothing, so that it need not run."""
MUTATORS = tuple(mutator for mutator, _ in MUTATOR_RULES)

REPAIRS: frozenset[Mutator] = frozenset({repair_resources})
"""Repairs of what the API server would refuse; pods of other schedulers get them too. All mutators run on a
template, of which review.py applies only these and warnings."""

FOR_QUEUED: frozenset[Mutator] = frozenset({add_tolerations, add_affinity})
"""What queuedTemplates: Write applies to the templates of workloads that Kueue queues."""

FOR_KUBELETS: frozenset[Mutator] = frozenset({add_affinity})
"""Mutators for pods with spec.nodeName of any scheduler: the kubelet enforces what they write."""

GUARDS: frozenset[Mutator] = frozenset({warn_of_names, guard_devices, hide_devices, warn_of_runtime_class})
"""Mutators for every object that reaches the webhook, whether it asks for a GPU or not."""

FOR_RESIZE: frozenset[Mutator] = frozenset({equalize_memory})
"""Mutators for a running pod whose CPU or memory is changed."""

_NO_RULES = AdmissionRules()

OF_VALIDATORS = ("bypass", "fractional", "idle", "max_gpus_per_pod", "per_gpu", "privileged", "shared_replicas")
"""The fields of AdmissionRules that no mutator reads."""
_of_mutators = attrgetter(
    *({one.name for one in fields(AdmissionRules)} - {*OF_VALIDATORS, "visible_devices", "set_by"})
)

FOR_CPU_PODS: frozenset[Mutator] = frozenset({keep_off_gpu_nodes})
"""Mutators for pods that ask for no GPU."""
FOR_GPU_PODS = frozenset(MUTATORS) - FOR_CPU_PODS
"""Mutators for pods that ask for a GPU and have a scheduler of ours."""


def mutators_of(review: ReviewedPod) -> tuple[Mutator, ...]:
    """List the mutators that apply to the object, in order."""
    if review.context.form is PodForm.Ephemeral:
        chosen = GUARDS
    elif review.context.form is PodForm.Resize:
        chosen = FOR_RESIZE if review.asks_for_gpu and review.has_our_scheduler else frozenset()
    elif not review.asks_for_gpu:
        tolerated = review.gpus.passthrough and review.has_our_scheduler
        chosen = GUARDS | FOR_CPU_PODS | (frozenset({add_tolerations}) if tolerated else frozenset())
    elif not review.has_our_scheduler:
        chosen = GUARDS | REPAIRS | (FOR_KUBELETS if review.pod.node_name else frozenset())
    else:
        chosen = FOR_GPU_PODS
    return tuple(
        mutator
        for mutator, rule in MUTATOR_RULES
        if mutator in chosen and (rule is None or getattr(review.rules, rule) is not getattr(_NO_RULES, rule))
    )


def is_same_for_mutators(one: ReviewedPod, other: ReviewedPod) -> bool:
    """Tell whether two levels say the same to every mutator, on one pod; visibleDevices: Deny is for validators."""
    read = [(*_of_mutators(at.rules), at.rules.visible_devices.replace("Deny", "Leave")) for at in (one, other)]
    return one.ruling.demand is other.ruling.demand and read[0] == read[1]


def run_mutators(review: ReviewedPod) -> tuple[ReviewedPod, list[tuple[Mutator, PodChange]]]:
    """Run the mutators in order, each on what the earlier ones left."""
    changes: list[tuple[Mutator, PodChange]] = []
    for mutator in mutators_of(review):
        done = list(mutator(review))
        changes += [(mutator, change) for change in done]
        operations = [operation for change in done for operation in change.operations]
        if operations:
            review = review.with_operations(operations)
    return review, changes
