# SPDX-License-Identifier: Apache-2.0
"""What keeps a pod with claims from every node, whichever devices there are, and what would remove it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from app.dra.cluster_devices import ClusterDevices
from app.kube.pods import Pod
from app.kube.resource_claims import ResourceClaim

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


def obstacles_of(entries: ClaimEntries) -> tuple[Obstacle, ...]:
    """List what is in the way of a pod on every node."""
    return tuple(obstacle for check in OBSTACLES for obstacle in check(entries))


def unknown_names(entries: ClaimEntries) -> tuple[str, ...]:
    """Name the claims and templates that are not known, where none of their kind is: perhaps gpu-usher may not read
    them."""
    return tuple(name for name, claim in entries.claims if claim is None and not _of_kind(name, entries.cluster))


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
