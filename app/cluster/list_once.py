# SPDX-License-Identifier: Apache-2.0
"""Reads objects of a live cluster once, for a command; whole objects, as in a snapshot."""

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from app.cluster.access import Load
from app.cluster.apiserver import ApiServer
from app.cluster.listing import ListPage
from app.cluster.watched_kinds import POLICY_GROUP_PATH
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
    "GPUPolicy": f"{POLICY_GROUP_PATH}/{VERSION}/{PLURAL}",
    "ConfigMap": "/api/v1/namespaces/gpu-usher/configmaps",
}
"""Paths by kind, as far as commands read them."""
PAGE_OBJECTS = 500
FORBIDDEN = 403
NOT_READABLE = (FORBIDDEN, 404)


async def read_objects(
    load: Load,
    *kinds: str,
    optional: Collection[str] = (),
    report: Callable[[str], None] = lambda _: None,
    report_forbidden: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """List all objects of these kinds. Kinds in `optional` are left out if they are not served or forbidden.

    `report` is called before each kind is read, `report_forbidden` with the path of an optional kind that is forbidden.

    Raises ApiError.
    """
    server = ApiServer(load)
    objects: list[dict[str, Any]] = []
    try:
        for kind in (*kinds, *optional):
            report(f"reading {PATHS[kind]} of the cluster")
            try:
                objects.extend(await list_objects(server, kind, PATHS[kind]))
            except ApiError as error:
                if kind not in optional or error.status not in NOT_READABLE:
                    raise
                if error.status == FORBIDDEN:
                    report_forbidden(PATHS[kind])
    finally:
        await server.close()
    return objects


async def list_objects(
    server: ApiServer,
    kind: str,
    path: str,
    keep: Callable[[dict[str, Any]], bool] | None = None,
) -> list[dict[str, Any]]:
    """List the objects at a path in pages: all of them, or those that `keep` selects.

    Raises ApiError.
    """
    objects: list[dict[str, Any]] = []
    token = ""
    while True:
        params = {"limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
        body = await server.get(path, params)
        try:
            page = msgspec.json.decode(body, type=ListPage[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise ApiError(200, f"{path}: no list: {error}") from error
        objects.extend({**item, "kind": kind} for item in page.items or () if keep is None or keep(item))
        token = page.metadata.more
        if not token:
            return objects
