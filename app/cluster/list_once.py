# SPDX-License-Identifier: Apache-2.0
"""A live cluster read once, for a command that answers and ends: whole objects, as a snapshot has them."""

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from app.cluster.access import Load
from app.cluster.apiserver import ApiServer
from app.cluster.listing import ListPage
from app.cluster.watched_kinds import POLICY_GROUP
from app.policy.crd import PLURAL, VERSION
from app.values.errors import ApiError

PATHS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Namespace": "/api/v1/namespaces",
    "RuntimeClass": "/apis/node.k8s.io/v1/runtimeclasses",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/persistentvolumeclaims",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ResourceSlice": "/apis/resource.k8s.io/v1/resourceslices",
    "ResourceClaim": "/apis/resource.k8s.io/v1/resourceclaims",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "GPUPolicy": f"{POLICY_GROUP}/{VERSION}/{PLURAL}",
    "ConfigMap": "/api/v1/namespaces/gpu-usher/configmaps",
}
"""By kind; more as commands need them."""
PAGE_OBJECTS = 500
FORBIDDEN = 403
NOT_FOR_US = (FORBIDDEN, 404)


async def read_objects(
    load: Load,
    *kinds: str,
    optional: Collection[str] = (),
    say: Callable[[str], None] = lambda _: None,
    refused: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """List all objects of these kinds. `optional`: left out where they are not served, or not shown to us.

    `say`: is told of each kind before it is read. `refused`: is told of the path of one that is not shown to us.

    Raises ApiError.
    """
    server = ApiServer(load)
    found: list[dict[str, Any]] = []
    try:
        for kind in (*kinds, *optional):
            say(f"reading {PATHS[kind]} of the cluster")
            try:
                found.extend(await list_objects(server, kind, PATHS[kind]))
            except ApiError as error:
                if kind not in optional or error.status not in NOT_FOR_US:
                    raise
                if error.status == FORBIDDEN:
                    refused(PATHS[kind])
    finally:
        await server.close()
    return found


async def list_objects(
    server: ApiServer,
    kind: str,
    path: str,
    keep: Callable[[dict[str, Any]], bool] | None = None,
) -> list[dict[str, Any]]:
    """List the objects at a path, page by page; all of them, or those to keep.

    Raises ApiError.
    """
    found: list[dict[str, Any]] = []
    token = ""
    while True:
        params = {"limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
        body = await server.get(path, params)
        try:
            page = msgspec.json.decode(body, type=ListPage[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise ApiError(200, f"{path}: no list: {error}") from error
        found.extend({**item, "kind": kind} for item in page.items or () if keep is None or keep(item))
        token = page.metadata.more
        if not token:
            return found
