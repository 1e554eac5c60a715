# SPDX-License-Identifier: Apache-2.0
"""The needs of a pod as text, one line each, with the evidence and with the containers that ask."""

import re
from collections.abc import Iterable, Mapping

from app.explain.container_requests import listed, units_of
from app.knowledge.families import Families
from app.kube.pods import Container, Pod, gpu_amounts
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.needs import LEAST_CUDA, NEEDS

LIMIT_RANGER = "kubernetes.io/limit-ranger"
"""The annotation in which the API server says which amounts a LimitRange has set, as `LimitRanger plugin set: cpu,
memory request for container main; ...` (k8s.io/kubernetes plugin/pkg/admission/limitranger)."""
_SET = re.compile(r"([^;:]+) (?:request|limit) for (?:init )?container ([^\s;]+)")


def needs(demand: Demand, pod: Pod, families: Families) -> list[str]:
    """List every need as a line of text, with its evidence where there is one.

    GPUs by resources of others are named too, although only their number is checked (knowledge/families.yaml).
    """
    by_limit_range = _set_by_limit_range(pod.annotations)
    lines = [f"{amount} x {resource}{_shown(pod, resource, by_limit_range)}" for resource, amount in demand.resources]
    lines += [
        f"{amount} x {resource}, each {row.unit}: counted, not placed by gpu-usher"
        for resource, amount in gpu_amounts(pod, families.passthrough_family)
        if (row := families.elsewhere(resource))
    ]
    lines += [f"architecture {platform.architecture} ({platform.evidence})" for platform in demand.platforms]
    for need in NEEDS:
        lines += need.show(getattr(demand, need.demand_field))
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


def _set_by_limit_range(annotations: Mapping[str, str]) -> dict[str, set[str]]:
    """Read the resources whose amounts a LimitRange has set, by the name of the container."""
    found: dict[str, set[str]] = {}
    for resources, container in _SET.findall(annotations.get(LIMIT_RANGER, "")):
        found.setdefault(container, set()).update(name.strip() for name in resources.split(","))
    return found
