# SPDX-License-Identifier: Apache-2.0
"""A live cluster read once, for a command that answers and ends: whole objects, as a snapshot has them."""

from typing import Any

import msgspec

from app.cluster.access import Load
from app.cluster.apiserver import ApiServer
from app.cluster.listing import Page
from app.errors import ApiError

PATHS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Namespace": "/api/v1/namespaces",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/persistentvolumeclaims",
}
"""By kind; more as commands need them."""
PAGE_OBJECTS = 500


async def read_objects(load: Load, *kinds: str) -> list[dict[str, Any]]:
    """List all objects of these kinds.

    Raises ApiError.
    """
    server = ApiServer(load)
    try:
        return [each for kind in kinds for each in await _listed(server, kind)]
    finally:
        await server.close()


async def _listed(server: ApiServer, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        params = {"limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
        body = await server.get(PATHS[kind], params)
        try:
            page = msgspec.json.decode(body, type=Page[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise ApiError(200, f"{PATHS[kind]}: no list: {error}") from error
        found.extend({**item, "kind": kind} for item in page.items or ())
        token = page.metadata.more
        if not token:
            return found
