# SPDX-License-Identifier: Apache-2.0
"""What the containers of a pod request of a resource, and edits by which they request less, or another resource.

A pod may have hundreds of containers, and edits are proposed for many nodes: no function compares the containers with
each other, and no text names more than MOST_CONTAINERS_NAMED of them. `needs` writes all that the pod needs as text,
one line each, with the evidence and with the containers that ask.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from app.explain.edits import EditedDocument, containers_of
from app.knowledge.gpu_resources import Families
from app.kube.pod_requests import CORE_MILLI, CPU
from app.kube.pods import Container, Pod, gpu_amounts
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.needs import LEAST_CUDA, NEEDS
from app.values.reasons import join_with_or

ContainerRequests = Sequence[tuple[Container, int]]
"""Containers, each with the units of one resource that it requests after a change."""

MOST_CONTAINERS_NAMED = 5
"""Containers that a line names; the others are counted."""


def units_of(container: Container, resource: str) -> int:
    """Give what a container requests of a resource in whole units, rounded up; CPU is in milli-CPU."""
    return -int(-container.requested(resource) * (CORE_MILLI if resource == CPU else 1) // 1)


def lowered(pod: Pod, resource: str, left: int) -> ContainerRequests:
    """List the containers that request less once the pod requests at most `left` units.

    Of an extended resource, the containers with most give first, until each has one unit; then sidecars, and after them
    those that asked for least, go without. Of another resource all give the same share. An init container may request
    what the sidecars that are started before it leave.
    """
    asked = [units_of(container, resource) for container in pod.containers]
    new = list(asked)
    running = [at for at, container in enumerate(pod.containers) if not container.passing and asked[at]]
    over = sum(asked[at] for at in running) - left
    if not is_extended(resource):
        for at in running if over > 0 else ():
            new[at] = asked[at] * left // (over + left)
    else:
        largest = sorted(running, key=lambda at: (-asked[at], not pod.containers[at].sidecar))
        least_needed = sorted(running, key=lambda at: (not pod.containers[at].sidecar, asked[at]))
        for kept, order in ((1, largest), (0, least_needed)):
            for at in order:
                given = max(0, min(over, new[at] - kept))
                new[at], over = new[at] - given, over - given
    of_sidecars = 0
    for at, container in enumerate(pod.containers):
        if container.passing:
            new[at] = min(new[at], left - of_sidecars)
        elif container.sidecar:
            of_sidecars += new[at]
    return [(container, new[at]) for at, container in enumerate(pod.containers) if new[at] != asked[at]]


def at_most_each(pod: Pod, resource: str, most: int) -> ContainerRequests:
    """List the containers that request less once each requests at most `most` units."""
    return [(container, most) for container in pod.containers if units_of(container, resource) > most]


def total_after(pod: Pod, resource: str, requests: ContainerRequests) -> int:
    """Sum a resource of a pod as Kubernetes does, after a change of some of its containers."""
    new = {(one.list_name, one.index): units for one, units in requests}
    containers = (
        replace(one, requests={**one.requests, resource: Fraction(new[key])})
        if (key := (one.list_name, one.index)) in new
        else one
        for one in pod.containers
    )
    return int(replace(pod, containers=tuple(containers)).amount(resource))


def set_requests(resource: str, requests: ContainerRequests) -> Callable[[EditedDocument], None]:
    """Return an edit of the Pod that sets what containers request of a resource.

    A limit that stands for the request is set too; of extended resources, whose limit is the request, always.
    """

    def change(pod: EditedDocument) -> None:
        for container, units in requests:
            resources = pod["spec"][container.list_name][container.index]["resources"]
            requested, limits = (resources.get(kind) or {} for kind in ("requests", "limits"))
            both = is_extended(resource) or resource not in requested
            for amounts in (requested, limits) if both else (requested,):
                if resource in amounts:
                    amounts[resource] = amount_text(resource, units)

    return change


def requests_text(pod: Pod, resource: str, requests: ContainerRequests) -> str:
    """Write `: AMOUNT in container NAME, ...` for a change; empty where the pod has one container."""
    if len(pod.containers) < 2:
        return ""
    return f": {listed([f'{amount_text(resource, units)} in container {one.name}' for one, units in requests])}"


def names_of_requesters(pod: Pod, resource: str) -> str:
    """Write ` in container NAME` for the containers that name a resource; empty where the pod has one container."""
    names = [container.name for container in pod.containers if names_resource(container, resource)]
    return f" in container{'s' * (len(names) > 1)} {listed(names)}" if len(pod.containers) > 1 and names else ""


def listed(names: Sequence[str]) -> str:
    """Join the first names, and count the others."""
    more = len(names) - MOST_CONTAINERS_NAMED
    return ", ".join(names[:MOST_CONTAINERS_NAMED]) + (f" and {more} more" if more > 0 else "")


def names_resource(container: Container, resource: str) -> bool:
    """Tell whether a container names a resource in its requests or limits."""
    return resource in container.requests or resource in container.limits


def replace_resource(resource: str, other: str) -> Callable[[EditedDocument], None]:
    """Return an edit of the Pod that asks for as many units of another resource."""

    def rename(pod: EditedDocument) -> None:
        for amounts in _amounts_with(pod, resource):
            amounts[other] = amounts.pop(resource)

    return rename


def without_resource(resource: str) -> Callable[[EditedDocument], None]:
    """Return an edit of the Pod that requests nothing of a resource."""

    def drop(pod: EditedDocument) -> None:
        for amounts in _amounts_with(pod, resource):
            del amounts[resource]

    return drop


def _amounts_with(pod: EditedDocument, resource: str) -> Iterator[EditedDocument]:
    """Iterate over the requests and limits of the containers that have a resource."""
    for container in containers_of(pod):
        for amounts in (container.get("resources") or {}).values():
            if isinstance(amounts, dict) and resource in amounts:
                yield amounts


def is_extended(resource: str) -> bool:
    """Tell whether a resource is counted in whole units, and its limit is its request, as is so of huge pages too."""
    return "/" in resource or resource.startswith("hugepages-")


def amount_text(resource: str, amount: int) -> str:
    """Write an amount in the unit that people use, rounded down: more than is left would not fit."""
    if resource == CPU:
        return f"{amount}m" if amount % CORE_MILLI else str(amount // CORE_MILLI)
    if resource in ("memory", "ephemeral-storage") and amount >= 1 << 30:
        gib, hundredths = divmod(amount * 100 >> 30, 100)
        return f"{gib}.{hundredths:02}".rstrip("0").rstrip(".") + "Gi"
    return str(amount)


LIMIT_RANGER = "kubernetes.io/limit-ranger"
"""The annotation in which the API server says which amounts a LimitRange has set, as `LimitRanger plugin set: cpu,
memory request for container main; ...` (k8s.io/kubernetes plugin/pkg/admission/limitranger)."""
_SET = re.compile(r"([^;:]+) (?:request|limit) for (?:init )?container ([^\s;]+)")


def needs(demand: Demand, pod: Pod, families: Families) -> list[str]:
    """List every need as a line of text, with its evidence where there is one.

    GPUs by resources of others are named too, although only their number is checked (knowledge/families.yaml).
    """
    by_limit_range: dict[str, set[str]] = {}
    for resources, container in _SET.findall(pod.annotations.get(LIMIT_RANGER, "")):
        by_limit_range.setdefault(container, set()).update(name.strip() for name in resources.split(","))
    lines = [f"{amount} x {resource}{_shown(pod, resource, by_limit_range)}" for resource, amount in demand.resources]
    lines += [
        f"{amount} x {resource}, each {row.unit}: counted, not placed by gpu-usher"
        for resource, amount in gpu_amounts(pod, families.elsewhere)
        if (row := families.elsewhere(resource))
    ]
    lines += [f"architecture {platform.architecture} ({platform.evidence})" for platform in demand.platforms]
    lines += [
        f"compute capability {join_with_or(build.capabilities(None))}: code of {build.name} ({build.evidence})"
        for build in demand.builds
    ]
    for need in NEEDS:
        lines += need.lines(demand)
        if need is LEAST_CUDA:
            lines += [f"preferred: {show_need(preference)}" for preference in demand.preferred_cuda]
    if demand.declared_mib:
        lines.append(f"declares {demand.declared_mib} MiB of each shared GPU")
    return lines


def asked_by(pod: Pod, resources: Iterable[str]) -> dict[str, dict[str, int]]:
    """Give the units that each container requests, by resource and by name of the container."""
    return {
        resource: {each.name: units for each in pod.containers if (units := units_of(each, resource)) > 0}
        for resource in resources
    }


def _shown(pod: Pod, resource: str, by_limit_range: Mapping[str, set[str]]) -> str:
    """Name the containers that ask for a resource, with their amounts; empty for a pod of one container."""
    shown = [
        f"{container.name} {units}{_kind(container)}"
        f"{' by a LimitRange' if resource in by_limit_range.get(container.name, ()) else ''}"
        for container in pod.containers
        if (units := units_of(container, resource)) > 0
    ]
    return f": {listed(shown)}" if len(pod.containers) > 1 or by_limit_range else ""


def _kind(container: Container) -> str:
    if container.sidecar:
        return " (sidecar)"
    return " (init)" if container.list_name == "initContainers" else ""
