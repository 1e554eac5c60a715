# SPDX-License-Identifier: Apache-2.0
"""What claims ask, by their key: a part of State. Of an object nothing but its requests is kept (S13)."""

from app.kube.resource_claims import Claim, Requests

REQUESTS_SHARED = 1_000
"""Different requests that share one object; beyond, sharing starts over. Guess, measured nowhere."""


class ClaimIndex:
    """ResourceClaims, or ResourceClaimTemplates, as last seen.

    Those that ask for no GPU are kept too: a claim that is known to be for none is not one that nobody has seen yet,
    and a DeviceClass may come, or begin to serve nvidia.com/gpu, after the claims that name it. Equal requests share
    one object: a template's thousand claims cost a thousand keys.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Requests] = {}
        self._shared: dict[Requests, Requests] = {}

    def get(self, key: str) -> Requests | None:
        """Say what is asked under namespace/name; None if that is not known."""
        return self._by_key.get(key)

    def put(self, claim: Claim) -> None:
        """Take in what a claim asks, new or changed."""
        if len(self._shared) >= REQUESTS_SHARED:
            self._shared.clear()
        self._by_key[claim.key] = self._shared.setdefault(claim.requests, claim.requests)

    def drop(self, key: str) -> None:
        """Forget a claim."""
        self._by_key.pop(key, None)
