# SPDX-License-Identifier: Apache-2.0
"""Mutators: what is repaired in, or added to, a GPU pod. The tuple at the foot is the product."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from app.admission.affinity.mutator import MOST_TERMS, prefer, require
from app.admission.affinity.terms import NEED_WEIGHT, Term, Terms, terms_of
from app.admission.case import TEMPLATES, PodChange, PodForm, ReviewedPod
from app.admission.container_defaults import provide_cpu_and_memory, provide_driver_capabilities, provide_shared_memory
from app.admission.cpu_guard import keep_off_gpu_nodes
from app.admission.device_guard import guard_devices, hide_devices
from app.admission.json_patch import Operation, append, apply, put
from app.admission.mig_resizing import fall_back, right_size
from app.admission.tolerations import seen_taints, wanted_tolerations
from app.kube.pods import Container
from app.values.json_members import member
from app.values.reasons import Code, reason

Mutator = Callable[[ReviewedPod], Iterator[PodChange]]


def repair_resources(case: ReviewedPod) -> Iterator[PodChange]:
    """Copy requests without limits to limits, and settle requests that differ from limits (F7).

    The API server refuses both for extended resources (kubernetes pkg/apis/core/validation/validation.go).
    """
    document: Any = case.document
    for container in case.pod.containers:
        for resource in case.gpus_of(container):
            change = _repair(case, document, container, resource)
            if change is not None:
                document = apply(document, change.operations)
                yield change


def _repair(case: ReviewedPod, document: Any, container: Container, resource: str) -> PodChange | None:
    if resource not in container.limits:
        copied = case.rules.requests_only == "CopyToLimits"
        return _copy(document, container, resource, "requests", "limits") if copied else None
    differs = resource in container.requests and container.limits[resource] != container.requests[resource]
    if differs and case.rules.mismatch == "UseLimits":
        edited = case.rules.requests_only == "CopyToLimits" and _only_requests_edited(case, container, resource)
        return _copy(document, container, resource, *(("requests", "limits") if edited else ("limits", "requests")))
    return None


def _only_requests_edited(case: ReviewedPod, container: Container, resource: str) -> bool:
    """Tell whether an edit of a template changed requests and left limits, which we may have added (F18)."""
    former = case.former.get(container.name)
    if former is None:
        return False
    same = former.limits.get(resource) == container.limits[resource]
    return same and former.requests.get(resource) != container.requests[resource]


def _copy(document: Any, container: Container, resource: str, source: str, target: str) -> PodChange:
    raw = document["spec"][container.list_name][container.index]["resources"][source][resource]
    path = ("spec", container.list_name, str(container.index), "resources", target, resource)
    done = f"{resource} {target} set to {raw} as in {source}"
    lacking = resource not in container.limits
    why = "the API server refuses requests without limits" if lacking else "requests must equal limits"
    return PodChange((put(document, path, raw),), f"{container.name}: {done}", f"{container.name}: {done}: {why}")


def set_runtime_class(case: ReviewedPod) -> Iterator[PodChange]:
    """Set runtimeClassName where the pod names none and the class exists; a missing one rejects the pod (F5, F6)."""
    name, said = case.rules.runtime_class_name, case.pod.runtime_class_name
    known = case.fleet.runtime_classes
    if said and case.form in TEMPLATES and known is not None and said not in known:
        missing = reason(Code.RuntimeClassMissing, f"RuntimeClass {said[:24]} does not exist").message
        yield PodChange((), missing, f"{missing}: no pod of this template would be created")
    if name is None or name == said or not _suits_family(case, name):
        return
    if said is not None and (
        "runtime_class_name" not in case.rules.override or (case.document["spec"].get("overhead"))
    ):
        return  # what the class said before brought its overhead along, and a second one is refused
    known = case.fleet.runtime_classes
    if known is None or name not in known:
        unknown = "is not known to exist" if known is None else "does not exist"
        yield PodChange((), f"RuntimeClass {name} {unknown}, runtimeClassName not set")  # doctor tells who can mend it
    elif obstacle := _obstacle(case, name, known[name]):
        yield PodChange((), obstacle, obstacle)
    else:
        yield PodChange((put(case.document, ("spec", "runtimeClassName"), name),), f"runtimeClassName set to {name}")


def _obstacle(case: ReviewedPod, name: str, selector: Mapping[str, str]) -> str | None:
    """Say why the API server would refuse the pod with this RuntimeClass: it selects other nodes."""
    chosen = member(case.document["spec"], "nodeSelector", dict, "spec.") or {}
    for key, value in selector.items():
        if chosen.get(key, value) != value:
            return f"RuntimeClass {name} selects nodes with {key}={value}, the pod others: runtimeClassName not set"
    return None


def _suits_family(case: ReviewedPod, name: str) -> bool:
    """Keep one vendor's runtime class off pods that ask for another vendor's GPUs only."""
    owners = [family for family in case.knowledge.families.all if name.startswith(family.name)]
    return not owners or any(family in owners for family in case.families())


def set_scheduler(case: ReviewedPod) -> Iterator[PodChange]:
    """Send the pod to the scheduler that the policy names, unless it chose one itself (F13, S14)."""
    name, said = case.rules.scheduler_name, case.pod.scheduler_name
    free = said == "default-scheduler" or "scheduler_name" in case.rules.override
    if name is not None and said != name and free:
        yield PodChange((put(case.document, ("spec", "schedulerName"), name),), f"schedulerName set to {name}")


def set_priority_class(case: ReviewedPod) -> Iterator[PodChange]:
    """Set priorityClassName unless the pod names one.

    What the API server's own plugin has worked out from no class must go, or it is refused
    (docs/reference/control-plane.md#after-the-webhook).
    """
    name = case.rules.priority_class_name
    said = member(case.document["spec"], "priorityClassName", str, "spec.")
    if name is None or said == name or (said and "priority_class_name" not in case.rules.override):
        return
    computed = [key for key in ("priority", "preemptionPolicy") if key in case.document["spec"]]
    removed = [Operation("remove", ("spec", key)) for key in computed]
    operations = (*removed, put(case.document, ("spec", "priorityClassName"), name))
    yield PodChange(operations, f"priorityClassName set to {name}")


def add_tolerations(case: ReviewedPod) -> Iterator[PodChange]:
    """Tolerate the GPU taints of the nodes that could serve the pod (F2, F3, F4)."""
    wanted = wanted_tolerations(case)
    operations: list[Operation] = []
    document: Any = case.document
    for toleration in wanted:
        operations.append(append(document, ("spec", "tolerations"), toleration))
        document = apply(document, operations[-1:])
    if operations:
        keys = ", ".join(dict.fromkeys(each["key"] for each in wanted))
        if case.form is PodForm.DaemonSet and any(taint[0] in keys for taint in seen_taints(case)):
            missing = f"the template does not tolerate {keys}"  # by which the controller decides, before any pod
            yield PodChange((), missing, f"{missing}: its pods stay off tainted nodes")
        yield PodChange(tuple(operations), f"toleration added for {keys}")


def add_affinity(case: ReviewedPod) -> Iterator[PodChange]:
    """Write needs and preferences that labels can express as node affinity (F10, F136)."""
    mode, demand = case.rules.affinity_mode, case.ruling.demand
    if mode == "Off" or not demand.judged:
        return
    terms = terms_of(demand, case.fleet, case.rules.affinity_keys, case.knowledge)
    preferred = list(terms.preferred)
    if mode == "Required" and terms.required:
        operations = require(case.document, terms.required)
        if operations is None:
            yield PodChange((), TOO_MANY_TERMS, TOO_MANY_TERMS)
        elif operations:
            yield PodChange(operations, f"required node affinity added on {_keys(terms.required)}", _closing(terms))
            case = case.after(operations)
    elif mode == "Preferred":
        preferred = [*((NEED_WEIGHT, term) for term in terms.required), *preferred]
    operations = prefer(case.document, preferred)
    if operations:
        hard = mode == "Required"
        warning = UNSURE if hard and terms.unsure else ONLY_PREFERRED if hard and terms.soft else None
        yield PodChange(operations, f"preferred node affinity added on {_keys(term for _, term in preferred)}", warning)


def _closing(terms: Terms) -> str | None:
    """Say which labels keep node groups at zero from coming for the pod: their templates may lack them."""
    if not terms.closed:
        return None
    return f"node groups at zero stay there unless their templates have: {', '.join(terms.closed)}"


def _keys(terms: Iterable[Term]) -> str:
    return ", ".join(dict.fromkeys(expression["key"] for term in terms for expression in term))


TOO_MANY_TERMS = f"node affinity left out: more than {MOST_TERMS} terms with the pod's own; the extender still judges"
UNSURE = "a need is only preferred by node affinity: no node has the labels, and one to come may not carry them"
ONLY_PREFERRED = "a need is only preferred by node affinity: some nodes that fit carry no label that tells"

MUTATORS: tuple[Mutator, ...] = (
    repair_resources,
    fall_back,
    right_size,
    guard_devices,
    hide_devices,
    set_runtime_class,
    set_scheduler,
    set_priority_class,
    provide_cpu_and_memory,
    provide_shared_memory,
    provide_driver_capabilities,
    add_tolerations,
    add_affinity,
    keep_off_gpu_nodes,
)
"""In this order, each on the object as the earlier left it."""

REPAIRS: frozenset[Mutator] = frozenset({repair_resources})
"""What the API server would refuse: done in templates too, and for other schedulers' pods (F18, S14)."""

AMOUNTS: frozenset[Mutator] = REPAIRS | {fall_back, right_size}
"""What changes which container asks for what; whatever they do, the pod is ruled on anew."""

GUARDS: frozenset[Mutator] = frozenset({guard_devices, hide_devices})
"""What is done to whatever reaches us, whether it asks for a GPU or not."""

FOR_OTHERS: frozenset[Mutator] = frozenset({keep_off_gpu_nodes})
"""What is done to pods that ask for no GPU."""


def mutators_of(case: ReviewedPod) -> tuple[Mutator, ...]:
    """List the mutators that an object is for."""
    if case.form is PodForm.Ephemeral:
        chosen = GUARDS
    elif not case.asks:
        chosen = GUARDS | FOR_OTHERS
    elif not case.served:
        chosen = GUARDS | REPAIRS
    else:
        chosen = frozenset(MUTATORS) - FOR_OTHERS
    return tuple(each for each in MUTATORS if each in chosen)
