# SPDX-License-Identifier: Apache-2.0
"""Pods: Kubernetes JSON read into the facts that decide, with Kubernetes' own request arithmetic.

The Pod itself stays a dict: patches are made against it, unknown fields survive. A shape that Kubernetes
would refuse raises MalformedPod with the path, so that bad input never becomes a crash.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from app.kube.partial_types import PodLabels
from app.kube.pod_limits import (
    LONGEST_IMAGE,
    LONGEST_NAME,
    MOST_AMOUNTS,
    MOST_CLAIMS,
    MOST_CONTAINERS,
    MOST_EXTENDED,
    MOST_RESOURCES,
    check_annotations,
    check_labels,
    check_text,
    check_variables,
)
from app.values.errors import MalformedPod, OversizedPod, QuantityError
from app.values.json_members import json_name, member, objects, strings
from app.values.quantity import digits_of, not_a_number, parse_quantity

NONE = Fraction(0)
PREFIX = "gpu-usher.io/"
DECISION = PREFIX + "decision"
GPU_MEMORY = PREFIX + "gpu-memory"
GROUP_LABELS = tuple(PodLabels.__annotations__)


@dataclass(frozen=True, slots=True)
class Container:
    """One container, init container or sidecar (an init container with restartPolicy Always).

    `list_name` and `index` say where it stands in the spec; `requests` and `limits` hold every resource.
    `claims`: (entry of the pod's resourceClaims, request in it), the request empty for the whole claim.
    """

    name: str
    list_name: str
    index: int
    sidecar: bool
    image: str
    env: tuple[tuple[str, str | None], ...]
    requests: Mapping[str, Fraction]
    limits: Mapping[str, Fraction]
    claims: tuple[tuple[str, str], ...] = ()

    def asks(self, resource: str) -> Fraction:
        """Say how much it asks: the request, or the limit where only that is set (API defaulting)."""
        return self.requests.get(resource, self.limits.get(resource, Fraction(0)))

    def resources(self) -> tuple[str, ...]:
        """List the resources that it names, sorted."""
        return tuple(sorted({*self.requests, *self.limits}))

    def names(self, resource: str) -> bool:
        """Tell whether it names an amount other than zero, in requests or in limits."""
        return self.requests.get(resource, 0) != 0 or self.limits.get(resource, 0) != 0

    def variable(self, name: str) -> str | None:
        """Read an environment variable's literal value; None if unset or taken from elsewhere. The last one counts."""
        return next((value for key, value in reversed(self.env) if key == name), None)


@dataclass(frozen=True, slots=True)
class Pod:
    """What decides about a Pod. `containers`: init containers first, in the order of the spec, as they start.

    `ephemeral`: containers that people add to a running pod; they can ask for nothing. `claims`: entries of
    resourceClaims as (name, ResourceClaim, ResourceClaimTemplate); of the last two, one that is not named is empty.
    """

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    scheduler_name: str
    runtime_class_name: str | None
    node_name: str | None
    claims: tuple[tuple[str, str, str], ...] = ()
    nominated_node_name: str | None = None
    ephemeral: tuple[Container, ...] = ()

    def amounts(self) -> Mapping[str, Fraction]:
        """Sum every resource, in one pass; `amount` says how, and is the plain twin that tests compare with."""
        running: dict[str, Fraction] = {}
        peak: dict[str, Fraction] = {}
        for container in self.containers:
            passing = container.list_name == "initContainers" and not container.sidecar
            for name in {*container.requests, *container.limits}:
                total = running.get(name, NONE) + container.asks(name)
                if passing:
                    peak[name] = max(peak.get(name, NONE), total)
                else:
                    running[name] = total
        return {name: max(running.get(name, NONE), peak.get(name, NONE)) for name in (*running, *peak)}

    def amount(self, resource: str) -> Fraction:
        """Sum a resource as Kubernetes does: what the running containers hold, or the hungriest moment of the start.

        Sidecars run on, so each init container counts with the sidecars started before it
        (k8s.io/component-helpers resource/helpers.go PodRequests; KEP-753).
        """
        running, peak = Fraction(0), Fraction(0)
        for container in self.containers:
            if container.list_name == "initContainers" and not container.sidecar:
                peak = max(peak, running + container.asks(resource))
            else:
                running += container.asks(resource)
        return max(running, peak)


def read_pod(pod: Mapping[str, Any], namespace: str | None = None) -> Pod:
    """Read a Pod as the API server or the scheduler sends it.

    `namespace`: the review's, which counts before the Pod's own
    (docs/reference/control-plane.md#requests-of-the-api-server). Raises MalformedPod, QuantityError.
    """
    metadata, spec, status = (member(pod, key, dict, "") or {} for key in ("metadata", "spec", "status"))
    _check_what_patches_touch(spec)
    return Pod(
        name=name_of(metadata, "name", "metadata.") or name_of(metadata, "generateName", "metadata."),
        namespace=namespace or name_of(metadata, "namespace", "metadata.") or "default",
        uid=name_of(metadata, "uid", "metadata."),
        labels=check_labels(strings(metadata, "labels", "metadata.")),
        annotations=check_annotations(strings(metadata, "annotations", "metadata."), PREFIX),
        containers=tuple(_containers(spec, "initContainers", "containers")),
        scheduler_name=name_of(spec, "schedulerName", "spec.") or "default-scheduler",
        runtime_class_name=member(spec, "runtimeClassName", str, "spec."),
        node_name=member(spec, "nodeName", str, "spec."),
        claims=tuple(_claims(spec)),
        nominated_node_name=name_of(status, "nominatedNodeName", "status.") or None,
        ephemeral=tuple(_containers(spec, "ephemeralContainers")),
    )


def name_of(parent: Mapping[str, Any], key: str, where: str, longest: int = LONGEST_NAME) -> str:
    """Read an optional name, empty where there is none. Raises MalformedPod, OversizedPod."""
    return check_text(member(parent, key, str, where) or "", longest, f"{where}{key}")


def _check_what_patches_touch(spec: Mapping[str, Any]) -> None:
    """Check the shape of what is only ever added to, so that no patch meets a surprise."""
    for list_name in ("tolerations", "volumes"):
        for _ in objects(spec, list_name, "spec."):
            pass
    affinity = member(spec, "affinity", dict, "spec.") or {}
    node_affinity = member(affinity, "nodeAffinity", dict, "spec.affinity.") or {}
    where = "spec.affinity.nodeAffinity."
    for _ in objects(node_affinity, "preferredDuringSchedulingIgnoredDuringExecution", where):
        pass
    required = member(node_affinity, "requiredDuringSchedulingIgnoredDuringExecution", dict, where) or {}
    where += "requiredDuringSchedulingIgnoredDuringExecution."
    for index, term in objects(required, "nodeSelectorTerms", where):
        for _ in objects(term, "matchExpressions", f"{where}nodeSelectorTerms[{index}]."):
            pass


def _containers(spec: Mapping[str, Any], *list_names: str) -> Iterator[Container]:
    """Read containers; more than any pod has are refused as they come, because anybody may send a pod."""
    named: set[str] = set()
    amounts = extended = containers = 0
    variables: list[tuple[str, str | None]] = []
    for list_name in list_names:
        for index, item in objects(spec, list_name, "spec."):
            if (containers := containers + 1) > MOST_CONTAINERS:
                raise OversizedPod(f"spec.{list_name}: got more, wants at most {MOST_CONTAINERS} containers")
            container = _container(item, list_name, index)
            asked = {*container.requests, *container.limits}  # requests copied to limits are no more
            named |= asked
            amounts += len(asked)
            extended += sum("/" in name for name in asked)
            if len(named) > MOST_RESOURCES or amounts > MOST_AMOUNTS or extended > MOST_EXTENDED:
                most = f"{MOST_RESOURCES} resources, {MOST_AMOUNTS} amounts, {MOST_EXTENDED} of extended resources"
                raise OversizedPod(f"spec.{list_name}: got more, wants at most {most}")
            variables += container.env
            yield container
    check_variables(variables)


def _container(item: Mapping[str, Any], list_name: str, index: int) -> Container:
    where = f"spec.{list_name}[{index}]."
    resources = member(item, "resources", dict, where) or {}
    restart = member(item, "restartPolicy", str, where)
    return Container(
        name=name_of(item, "name", where),
        list_name=list_name,
        index=index,
        sidecar=list_name == "initContainers" and restart == "Always",
        image=name_of(item, "image", where, LONGEST_IMAGE),
        env=tuple(_environment(item, where)),
        requests=_quantities(resources, "requests", where),
        limits=_quantities(resources, "limits", where),
        claims=tuple(_claims_used(resources, f"{where}resources.")),
    )


def _claims(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for index, item in objects(spec, "resourceClaims", "spec.", MOST_CLAIMS):
        where = f"spec.resourceClaims[{index}]."
        claim, template = (member(item, f"resourceClaim{each}Name", str, where) or "" for each in ("", "Template"))
        yield member(item, "name", str, where) or "", claim, template


def _claims_used(resources: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    for index, item in objects(resources, "claims", where, MOST_CLAIMS):
        inside = f"{where}claims[{index}]."
        yield member(item, "name", str, inside) or "", member(item, "request", str, inside) or ""


def _environment(item: Mapping[str, Any], where: str) -> Iterator[tuple[str, str | None]]:
    """Read the NVIDIA_* variables of a container. A pod may have thousands of others, and is read five times."""
    for variable in member(item, "env", list, where) or ():
        if not isinstance(variable, dict):
            list(objects(item, "env", where))  # raises, naming the first that is no object
        name, value = variable.get("name"), variable.get("value")
        if not ((name is None or type(name) is str) and (value is None or type(value) is str)):
            _wrong_variable(item, where)
        elif name and name.startswith("NVIDIA_"):
            yield name, None if variable.get("valueFrom") else value or ""


def _wrong_variable(item: Mapping[str, Any], where: str) -> None:
    """Raise MalformedPod for the first variable whose name or value is no string."""
    for index, variable in objects(item, "env", where):
        for key in ("name", "value"):
            member(variable, key, str, f"{where}env[{index}].")


def _quantities(resources: Mapping[str, Any], key: str, where: str) -> Mapping[str, Fraction]:
    """Read requests or limits; Kubernetes takes JSON numbers as quantities too (resource.Quantity UnmarshalJSON)."""
    found = member(resources, key, dict, f"{where}resources.") or {}
    if len(found) > MOST_RESOURCES:
        raise OversizedPod(f"{where}resources.{key}: got {len(found)}, wants at most {MOST_RESOURCES} resources")
    amounts = {}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise MalformedPod(f"{where}resources.{key}[{name[:80]}]: got {json_name(value)}, wants a quantity")
        try:
            amounts[name] = parse_quantity(digits_of(value) if isinstance(value, int) else str(value))
        except QuantityError as error:
            raise QuantityError(f"{where}resources.{key}[{name[:80]}]: {not_a_number(str(value))}") from error
    return amounts


def group_of(namespace: str, labels: Mapping[str, str]) -> str:
    """Name the pods that a pod works with; empty where no label tells."""
    return next((f"{namespace}/{key}={labels[key]}" for key in GROUP_LABELS if key in labels), "")


def gpu_amounts(pod: Pod, is_gpu: Callable[[str], object]) -> tuple[tuple[str, int], ...]:
    """List what a Pod asks of GPU resources: (resource, amount rounded up), positive ones only, sorted."""
    found = sorted(pod.amounts().items())
    return tuple((name, -int(-amount // 1)) for name, amount in found if amount > 0 and is_gpu(name))
