# SPDX-License-Identifier: Apache-2.0
"""Reads objects of a live cluster once, for a command; whole objects, as in a snapshot."""

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from app.cluster.access import Load
from app.cluster.apiserver import ApiServer
from app.cluster.listing import ListPage
from app.kube.api_kinds import API_KINDS, NAMESPACE
from app.values.errors import ApiError

PAGE_OBJECTS = 500
FORBIDDEN, NOT_FOUND = 403, 404
NOT_READABLE = (FORBIDDEN, NOT_FOUND)


async def read_objects(
    load: Load,
    *kinds: str,
    optional: Collection[str] = (),
    report: Callable[[str], None] = lambda _: None,
    report_forbidden: Callable[[str], None] = lambda _: None,
    namespace: str = NAMESPACE,
) -> list[dict[str, Any]]:
    """List all objects of these kinds. Kinds in `optional` are left out if they are not served or forbidden.

    `report` is called before each kind is read, `report_forbidden` with the path of an optional kind that is forbidden.
    `namespace` is that of gpu-usher, whose ConfigMaps may hold policies.

    Raises ApiError.
    """
    server = ApiServer(load)
    objects: list[dict[str, Any]] = []
    try:
        for kind in (*kinds, *optional):
            path = API_KINDS[kind].path(namespace)
            report(f"reading {path} of the cluster")
            try:
                objects.extend(await list_kind(server, kind, namespace))
            except ApiError as error:
                if kind not in optional or error.status not in NOT_READABLE:
                    raise
                if error.status == FORBIDDEN:
                    report_forbidden(path)
    finally:
        await server.close()
    return objects


async def list_kind(
    server: ApiServer, kind: str, namespace: str, keep: Callable[[dict[str, Any]], bool] | None = None
) -> list[dict[str, Any]]:
    """List the objects of a kind in the newest version that is served: all of them, or those that `keep` selects.

    Raises ApiError, with the status 404 if the kind is served in none of its versions.
    """
    *newer, oldest = API_KINDS[kind].versions
    for version in newer:
        try:
            return await list_objects(server, kind, version, namespace, keep)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
    return await list_objects(server, kind, oldest, namespace, keep)


async def list_objects(
    server: ApiServer,
    kind: str,
    version: str,
    namespace: str,
    keep: Callable[[dict[str, Any]], bool] | None = None,
) -> list[dict[str, Any]]:
    """List the objects of a kind in one version, in pages: all of them, or those that `keep` selects.

    The API server names kind and version for the list alone; each object gets them, as in a snapshot of kubectl.

    Raises ApiError.
    """
    path = API_KINDS[kind].path(namespace, version)
    type_meta = {"apiVersion": API_KINDS[kind].api_version(version), "kind": kind}
    objects: list[dict[str, Any]] = []
    token = ""
    while True:
        params = {"limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
        body = await server.get(path, params)
        try:
            page = msgspec.json.decode(body, type=ListPage[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise ApiError(200, f"{path}: no list: {error}") from error
        objects.extend({**item, **type_meta} for item in page.items or () if keep is None or keep(item))
        token = page.metadata.more
        if not token:
            return objects
