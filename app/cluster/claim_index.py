# SPDX-License-Identifier: Apache-2.0
"""The requests of claims, by the claim's key. A part of State; nothing else of a claim is kept."""

from app.kube.api_kinds import API_KINDS
from app.kube.resource_claims import Claim, Requests

REQUESTS_SHARED = 1_000
"""Distinct requests that share one object; above it, sharing starts over. A guess, not measured."""


class ClaimIndex:
    """The ResourceClaims, or ResourceClaimTemplates, as last seen.

    Claims without GPUs are kept too: such a claim differs from one that was not seen yet, and a DeviceClass may be
    created, or begin to serve nvidia.com/gpu, after the claims that name it. Equal requests share one object, so that a
    template's thousand claims cost a thousand keys. `served_version` is the version of resource.k8s.io in which the
    API server serves them.
    """

    def __init__(self) -> None:
        self.served_version = API_KINDS["ResourceClaimTemplate"].versions[0]
        self._by_key: dict[str, Requests] = {}
        self._shared: dict[Requests, Requests] = {}

    def get(self, key: str) -> Requests | None:
        """Return the requests of the claim namespace/name; None if it is unknown."""
        return self._by_key.get(key)

    def put(self, claim: Claim) -> None:
        """Add or change a claim."""
        if len(self._shared) >= REQUESTS_SHARED:
            self._shared.clear()
        self._by_key[claim.key] = self._shared.setdefault(claim.requests, claim.requests)

    def drop(self, key: str) -> None:
        """Remove a claim."""
        self._by_key.pop(key, None)
