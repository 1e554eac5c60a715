# SPDX-License-Identifier: Apache-2.0
"""The claims of a pod: those it names, those made of templates that it names, and what keeps them from every node.

A note names containers that would run without the devices, of which Kubernetes says nothing: the kubelet gives a
container the devices of the claims and requests that it names, an alternative by its request's name (kubernetes
pkg/kubelet/cm/dra/claiminfo.go cdiDevicesAsList).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import ceil
from typing import Any

from app.dra.cluster_devices import ClusterDevices
from app.kube.pod_requests import read_amounts
from app.kube.pods import Pod
from app.kube.resource_claims import POD, ClaimSpec, DeviceRequest, ResourceClaim, claim_of
from app.nodes.model import Node
from app.values.json_members import object_if_any, objects_if_any

ADMIN_ACCESS = ("resource.kubernetes.io/admin-access", "resource.k8s.io/admin-access")
"""Labels of a namespace in which claims can have admin access: since Kubernetes v1.34, and in v1.33 (KEP-5018;
pkg/registry/resource/utils.go AuthorizedForAdmin). The value is "true"."""
CLOSE_NAMES = 2
"""Names like a misspelt one that are tried."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One way to remove an obstacle. `of` is what it changes: pod, claim or fleet; `adds` is the claim it gives."""

    kind: str
    text: str
    of: str
    adds: ResourceClaim | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing in the way, in words, with what would remove it."""

    text: str
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimEntries:
    """The claims of a pod as obstacles are looked for: each with its name, None where it is not known.

    `labels` are those of the pod's namespace; None where they are not known.
    """

    pod: Pod
    claims: Sequence[tuple[str, ResourceClaim | None]]
    cluster: ClusterDevices
    labels: Mapping[str, str] | None


def _of_kind(name: str, cluster: ClusterDevices) -> Mapping[str, ResourceClaim]:
    return cluster.templates if name.startswith("ResourceClaimTemplate ") else cluster.claims


def deleted_claims(entries: ClaimEntries) -> Iterator[Obstacle]:
    """Find claims that are being deleted: no further pod can use them."""
    for _, claim in entries.claims:
        if claim is not None and claim.deleted:
            yield Obstacle(f"ResourceClaim {claim.key} is being deleted")


def missing_claims(entries: ClaimEntries) -> Iterator[Obstacle]:
    """Find claims and templates that do not exist, although others of their kind are known."""
    for name, claim in entries.claims:
        known = _of_kind(name, entries.cluster)
        if claim is None and known:
            kind, _, key = name.partition(" ")
            namespace, _, bare = key.partition("/")
            elsewhere = sorted(other.partition("/")[0] for other in known if other.partition("/")[2] == bare)
            hint = f"; namespace {elsewhere[0]} has one, and a pod uses those of its own" if elsewhere else ""
            yield Obstacle(f"{name} does not exist{hint}", tuple(_substitutes(kind, namespace, bare, known)))


def _substitutes(kind: str, namespace: str, bare: str, known: Mapping[str, ResourceClaim]) -> Iterator[Repair]:
    """Propose what might be meant: one of a similar name in the namespace, or of the same name in another."""
    own = {key.partition("/")[2]: claim for key, claim in known.items() if key.startswith(f"{namespace}/")}
    for close in get_close_matches(bare, own, CLOSE_NAMES):
        yield Repair("name-claim", f"name {kind} {close} instead of {bare}", "pod", own[close])
    for key, claim in sorted(known.items()):
        if key.partition("/")[2] == bare and kind.endswith("Template"):
            text = f"create {kind} {bare} in namespace {namespace} as well, as it is in {key.partition('/')[0]}"
            yield Repair("create-template", text, "claim", claim)


def unknown_entries(entries: ClaimEntries) -> Iterator[Obstacle]:
    """Find containers that name a claim which the pod does not have; the API server refuses such a pod.

    Source: kubernetes pkg/apis/core/validation/validation.go validateResourceClaimNames.
    """
    own = [name for name, _, _ in entries.pod.claims]
    for container in entries.pod.containers:
        for used, _ in container.claims:
            if used not in own:
                text = f"container {container.name} names the claim {used}, which spec.resourceClaims does not have"
                names = get_close_matches(used, own, 1) or own[:1]
                fix = f"name the claim {names[0]} in container {container.name} instead of {used}" if names else ""
                yield Obstacle(text, (Repair("name-claim", fix, "pod"),) if fix else ())


def unlabelled_namespace(entries: ClaimEntries) -> Iterator[Obstacle]:
    """Find templates that ask for admin access in a namespace that is not meant for it; claims of them are refused."""
    labels = entries.labels
    if labels is None or any(labels.get(label) == "true" for label in ADMIN_ACCESS):
        return
    for name, claim in entries.claims:
        requests = [request for choices in claim.spec.requests for request in choices] if claim else []
        if name.startswith("ResourceClaimTemplate ") and any(request.admin_access for request in requests):
            label, namespace = f"{ADMIN_ACCESS[0]}=true", entries.pod.namespace
            text = f"{name} asks for adminAccess, which only namespaces with the label {label} allow"
            fix = f"label namespace {namespace} {label}, if its users may reach devices that others have"
            yield Obstacle(text, (Repair("label-namespace", fix, "fleet"),))


OBSTACLES: tuple[Callable[[ClaimEntries], Iterator[Obstacle]], ...] = (
    deleted_claims,
    missing_claims,
    unknown_entries,
    unlabelled_namespace,
)
"""The checks, those first that hold for all claims."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of a pod in its order, and what else there is to know before a node is looked at.

    `unknown` are the claims and templates that are not known. `obstacles` are what keeps the pod from every node.
    `extended` are the requests that kube-scheduler makes itself for extended resources, each with its resource.
    `notes` say which containers would run without the devices.
    """

    claims: tuple[ResourceClaim, ...]
    unknown: tuple[str, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    extended: tuple[tuple[str, DeviceRequest], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def in_the_way(self) -> str:
        """What keeps the pod from every node, in words; "" if nothing does."""
        return self.obstacles[0].text if self.obstacles else ""

    @property
    def to_allocate(self) -> tuple[ResourceClaim, ...]:
        """The claims that have no devices yet, with the one for extended resources."""
        return self._to_allocate(self.extended)

    def on(self, node: Node) -> tuple[ResourceClaim, ...]:
        """Return the claims that have no devices yet on one node, whose device plugin may serve extended resources."""
        offered = read_amounts(node.allocatable)
        return self._to_allocate([entry for entry in self.extended if not offered.get(entry[0])])

    def _to_allocate(self, extended: Sequence[tuple[str, DeviceRequest]]) -> tuple[ResourceClaim, ...]:
        waiting = tuple(claim for claim in self.claims if claim.allocation is None)
        if not extended:
            return waiting
        return (*waiting, claim_of(EXTENDED, ClaimSpec(tuple((request,) for _, request in extended))))

    @property
    def allocated(self) -> tuple[ResourceClaim, ...]:
        """The claims that have devices, with which the pod has to be where these are."""
        return tuple(claim for claim in self.claims if claim.allocation is not None)


EXTENDED = "<extended-resources>"
"""The key of the claim that kube-scheduler makes for extended resources (extendeddynamicresources.go)."""


def extended_requests(pod: Pod, cluster: ClusterDevices) -> tuple[tuple[str, DeviceRequest], ...]:
    """List what kube-scheduler requests for the extended resources that a DeviceClass serves, by resource.

    Each container that runs beside others has a request of its own; the name says whose it is. An init container uses
    the devices of the containers after it, and the largest number that such a container lacks is one more request
    (extendeddynamicresources.go createRequestsAndMappings).
    """
    serving = served_resources(cluster)
    names = sorted({name for container in pod.containers for name in container.resources() if name in serving})
    found: list[tuple[str, str, DeviceRequest]] = []
    for name in names:
        lasting: dict[int, int] = {}
        lacking: dict[int, int] = {}
        for position, container in enumerate(pod.containers):
            if container.list_name != "initContainers" or container.sidecar:
                lasting[position] = ceil(container.requested(name))
        for position, container in enumerate(pod.containers):
            if position not in lasting:
                usable = sum(count for other, count in lasting.items() if other > position)
                lacking[position] = ceil(container.requested(name)) - usable
        most = max(lacking, key=lambda position: lacking[position], default=None)
        counts = lasting if most is None else {**lasting, most: lacking[most]}
        for position, count in counts.items():
            if count > 0:
                container = pod.containers[position]
                order = f"container-{position}-request-{container.resources().index(name)}"
                words = f"{name.partition('/')[2]} of container {container.name}"
                found.append((order, name, DeviceRequest(words, serving[name], count=count)))
    return tuple((name, request) for _, name, request in sorted(found, key=lambda entry: entry[0]))


def served_resources(cluster: ClusterDevices) -> Mapping[str, str]:
    """Give the DeviceClass that serves each extended resource: of several the newest, of those the first by name.

    Source: dynamic-resource-allocation/deviceclass/extendedresourcecache updateResourceName2class.
    """
    by_name = sorted(cluster.classes.values(), key=lambda one: one.name, reverse=True)
    by_age = sorted(by_name, key=lambda one: one.created)  # the last one counts
    serving = {one.extended_resource: one.name for one in by_age if one.extended_resource}
    return serving | {f"{IMPLICIT}{name}": name for name in cluster.classes}


IMPLICIT = "deviceclass.resource.kubernetes.io/"
"""Before the name of a DeviceClass this is a resource that it always serves (resource/v1 ResourceDeviceClassPrefix)."""


def generated_claims(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the names of the claims that were made for a pod, by the entries of its resourceClaims."""
    statuses = objects_if_any(object_if_any(document, "status"), "resourceClaimStatuses")
    made = {str(one.get("name")): str(one["resourceClaimName"]) for one in statuses if one.get("resourceClaimName")}
    extended = object_if_any(object_if_any(document, "status"), "extendedResourceClaimStatus").get("resourceClaimName")
    return {**made, **({EXTENDED: str(extended)} if extended else {})}


def claims_of_pod(
    pod: Pod, document: Mapping[str, Any], cluster: ClusterDevices, labels: Mapping[str, str] | None = None
) -> PodClaims:
    """Find the claims of a pod. One that is made of a template, and not made yet, is named after the template.

    `labels` are those of the pod's namespace; None where they are not known.
    """
    generated = generated_claims(document)
    entries = ClaimEntries(pod, tuple(_entries(pod, generated, cluster)), cluster, labels)
    known = tuple(claim for _, claim in entries.claims if claim is not None)
    notes = tuple(container_notes(pod, _by_entry(pod, generated, cluster)))
    obstacles = tuple(obstacle for check in OBSTACLES for obstacle in check(entries))
    # Where none of a kind is known, perhaps gpu-usher may not read them.
    unknown = tuple(name for name, claim in entries.claims if claim is None and not _of_kind(name, cluster))
    return PodClaims(known, unknown, obstacles, extended_requests(pod, cluster), notes)


def _by_entry(pod: Pod, generated: Mapping[str, str], cluster: ClusterDevices) -> Mapping[str, ResourceClaim | None]:
    """Return the claim, or the template, of each entry of a pod's resourceClaims."""
    claims = {entry: cluster.claims.get(f"{pod.namespace}/{claim or generated.get(entry, '')}") for entry, claim, _ in
              pod.claims}  # fmt: skip
    templates = {entry: cluster.templates.get(f"{pod.namespace}/{template}") for entry, _, template in pod.claims}
    return {entry: claims[entry] or templates[entry] for entry in claims}


def _entries(
    pod: Pod, generated: Mapping[str, str], cluster: ClusterDevices
) -> Iterator[tuple[str, ResourceClaim | None]]:
    """List each claim of a pod with its name; two entries of one template are two claims."""
    seen: set[str] = set()
    for entry, claim, template in pod.claims:
        made = claim or generated.get(entry, "")
        if made and (claim or f"{pod.namespace}/{made}" in cluster.claims):
            key = f"{pod.namespace}/{made}"
            if key not in seen:
                seen.add(key)
                yield f"ResourceClaim {key}", cluster.claims.get(key)
        elif template:
            key = f"{pod.namespace}/{template}"
            known = cluster.templates.get(key)
            yield f"ResourceClaimTemplate {key}", known and claim_of(f"{key} ({entry})", known.spec)


def released(pod: Pod, document: Mapping[str, Any], cluster: ClusterDevices) -> ClusterDevices:
    """Return the cluster as it is once a pod is gone: with it go the claims that were made for it.

    A claim that was made for its PodGroup stays, since it serves the other members.
    """
    keys = {f"{pod.namespace}/{name}" for name in generated_claims(document).values()}
    made = {key: claim for key in keys if (claim := cluster.claims.get(key)) is not None}
    keys -= {key for key, claim in made.items() if any(kind != POD for kind, _ in claim.reserved_for)}
    claims = {key: claim for key, claim in cluster.claims.items() if key not in keys}
    return replace(cluster, claims=claims, allocated=cluster.allocated.without(keys))


def container_notes(pod: Pod, claims: Mapping[str, ResourceClaim | None]) -> Iterator[str]:
    """Say which claims no container uses, and which containers name a request that a claim does not have.

    `claims` are by the entries of the pod's resourceClaims; None for one that is not known.
    """
    used = {name for container in pod.containers for name, _ in container.claims}
    for entry in claims:
        if entry not in used:
            yield f"no container names the claim {entry} in resources.claims, so that none of them gets its devices"
    for container in pod.containers:
        for entry, request in container.claims:
            claim = claims.get(entry)
            names = sorted({choice.parent for choices in claim.spec.requests for choice in choices}) if claim else []
            if request and claim is not None and request not in names:
                yield (
                    f"container {container.name} names the request {request} of the claim {entry}, which has"
                    f" {', '.join(names)}: it gets no device"
                )
