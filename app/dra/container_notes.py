# SPDX-License-Identifier: Apache-2.0
"""Containers that would run without the devices that their pod claims, of which Kubernetes says nothing.

The kubelet gives a container the devices of the claims and requests that it names, an alternative by its request's name
(kubernetes pkg/kubelet/cm/dra/claiminfo.go cdiDevicesAsList).
"""

from collections.abc import Iterator, Mapping

from app.kube.pods import Pod
from app.kube.resource_claims import ResourceClaim


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
