# SPDX-License-Identifier: Apache-2.0
"""Mutators: what is repaired in, or added to, a GPU pod. The tuple at the foot is the product."""

from collections.abc import Callable, Iterator

from app.admission.affinity import expressions, prefer, require, serving_nodes_unlabelled
from app.admission.case import Case, Change
from app.admission.patch import Operation, append, apply, put
from app.admission.tolerations import wanted_tolerations
from app.pods import Container

Mutator = Callable[[Case], Iterator[Change]]


def repair_resources(case: Case) -> Iterator[Change]:
    """Copy requests without limits to limits, and settle requests that differ from limits (F7).

    The API server refuses both for extended resources (facts: k8s rules limit-required, equal).
    """
    for container in case.pod.containers:
        for resource in case.gpu_resources():
            change = _repair(case, container, resource) if container.names(resource) else None
            if change is not None:
                case = case.after(change.operations)
                yield change


def _repair(case: Case, container: Container, resource: str) -> Change | None:
    if resource not in container.limits:
        copied = case.rules.requests_only == "CopyToLimits"
        return _copy(case, container, resource, "requests", "limits") if copied else None
    differs = resource in container.requests and container.limits[resource] != container.requests[resource]
    if differs and case.rules.mismatch == "UseLimits":
        return _copy(case, container, resource, "limits", "requests")
    return None


def _copy(case: Case, container: Container, resource: str, source: str, target: str) -> Change:
    raw = case.document["spec"][container.list_name][container.index]["resources"][source][resource]
    path = ("spec", container.list_name, str(container.index), "resources", target, resource)
    done = f"{resource} {target} set to {raw} as in {source}"
    why = "the API server refuses requests without limits" if target == "limits" else "requests must equal limits"
    return Change((put(case.document, path, raw),), f"{container.name}: {done}", f"{container.name}: {done}: {why}")


def set_runtime_class(case: Case) -> Iterator[Change]:
    """Set runtimeClassName where the pod names none and the class exists; a missing one rejects the pod (F5, F6)."""
    name = case.rules.runtime_class_name
    if name is None or case.pod.runtime_class_name is not None or not _suits_family(case, name):
        return
    if case.fleet.runtime_classes is None or name not in case.fleet.runtime_classes:
        unknown = "is not known to exist" if case.fleet.runtime_classes is None else "does not exist"
        missing = f"RuntimeClass {name} {unknown}, runtimeClassName not set"
        yield Change((), missing, missing)
        return
    yield Change((put(case.document, ("spec", "runtimeClassName"), name),), f"runtimeClassName set to {name}")


def _suits_family(case: Case, name: str) -> bool:
    """Keep one vendor's runtime class off pods that ask for another vendor's GPUs only."""
    families = case.knowledge.families
    owners = [family for family in families.all if name.startswith(family.name)]
    asked = [families.of(resource) for resource in case.gpu_resources()]
    return not owners or any(family in owners for family in asked)


def set_scheduler(case: Case) -> Iterator[Change]:
    """Send the pod to the scheduler that the policy names, unless it chose one itself (F13, S14)."""
    name = case.rules.scheduler_name
    if name is not None and case.pod.scheduler_name == "default-scheduler" != name:
        yield Change((put(case.document, ("spec", "schedulerName"), name),), f"schedulerName set to {name}")


def add_tolerations(case: Case) -> Iterator[Change]:
    """Tolerate the GPU taints of the nodes that could serve the pod (F2, F3, F4)."""
    wanted = wanted_tolerations(case)
    operations: list[Operation] = []
    for toleration in wanted:
        operations.append(append(apply(case.document, operations), ("spec", "tolerations"), toleration))
    if operations:
        keys = ", ".join(dict.fromkeys(each["key"] for each in wanted))
        yield Change(tuple(operations), f"toleration added for {keys}")


def add_affinity(case: Case) -> Iterator[Change]:
    """Write needs that labels can express as node affinity (F10)."""
    mode = case.rules.affinity_mode
    wanted = expressions(case) if mode != "Off" else ()
    if not wanted:
        return
    warning = None
    if mode == "Required" and serving_nodes_unlabelled(case):
        mode = "Preferred"
        warning = (
            "GPU products are only preferred by affinity: some nodes that fit carry no nvidia.com/gpu.product label"
        )
    operations = require(case.document, wanted) if mode == "Required" else prefer(case.document, wanted)
    if operations:
        keys = ", ".join(dict.fromkeys(expression["key"] for expression in wanted))
        yield Change(operations, f"{mode.lower()} node affinity added on {keys}", warning)


MUTATORS: tuple[Mutator, ...] = (
    repair_resources,
    set_runtime_class,
    set_scheduler,
    add_tolerations,
    add_affinity,
)
"""In this order, each on the object as the earlier left it."""
