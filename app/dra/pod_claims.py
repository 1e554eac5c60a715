# SPDX-License-Identifier: Apache-2.0
"""The claims of a pod: those it names, those made of templates that it names, and what is in the way of all (S13)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.dra.claims import ResourceClaim
from app.dra.cluster_devices import ClusterDevices
from app.kube.pods import Pod
from app.values.json_members import object_if_any, objects_if_any


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of a pod in its order, and what else there is to know before a node is looked at.

    `unknown` are the claims and templates that are not known. `in_the_way` says what keeps the pod from every node.
    """

    claims: tuple[ResourceClaim, ...]
    unknown: tuple[str, ...] = ()
    in_the_way: str = ""

    @property
    def to_allocate(self) -> tuple[ResourceClaim, ...]:
        """The claims that have no devices yet."""
        return tuple(claim for claim in self.claims if claim.allocation is None)

    @property
    def allocated(self) -> tuple[ResourceClaim, ...]:
        """The claims that have devices, with which the pod has to be where these are."""
        return tuple(claim for claim in self.claims if claim.allocation is not None)


def generated_claims(document: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the names of the claims that were made for a pod, by the entries of its resourceClaims."""
    statuses = objects_if_any(object_if_any(document, "status"), "resourceClaimStatuses")
    return {str(one.get("name")): str(one["resourceClaimName"]) for one in statuses if one.get("resourceClaimName")}


def claims_of_pod(pod: Pod, document: Mapping[str, Any], cluster: ClusterDevices) -> PodClaims:
    """Find the claims of a pod. One that is made of a template, and not made yet, is named after the template."""
    entries = list(_entries(pod, generated_claims(document), cluster))
    claims = {claim.key: claim for _, claim in entries if claim is not None}
    unknown = tuple(name for name, claim in entries if claim is None)
    deleted = next((claim.key for claim in claims.values() if claim.deleted), "")
    in_the_way = f"ResourceClaim {deleted} is being deleted" if deleted else ""
    return PodClaims(tuple(claim for _, claim in entries if claim is not None), unknown, in_the_way)


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
            yield f"ResourceClaimTemplate {key}", known and replace(known, key=f"{key} ({entry})")


def released(pod: Pod, document: Mapping[str, Any], cluster: ClusterDevices) -> ClusterDevices:
    """Return the cluster as it is once a pod is gone: with it go the claims that were made for it."""
    keys = {f"{pod.namespace}/{name}" for name in generated_claims(document).values()}
    claims = {key: claim for key, claim in cluster.claims.items() if key not in keys}
    return replace(cluster, claims=claims, allocated=cluster.allocated.without(keys))
