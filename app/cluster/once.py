# SPDX-License-Identifier: Apache-2.0
"""A live cluster read once, for a command that answers and ends: whole objects, as a snapshot has them."""

from collections.abc import Callable
from typing import Any

import msgspec

from app.cluster.access import Load
from app.cluster.apiserver import ApiServer
from app.cluster.listing import Page
from app.errors import ApiError

PATHS = {"Node": "/api/v1/nodes", "Pod": "/api/v1/pods"}
"""By kind; more as commands need them."""
PAGE_OBJECTS = 500


async def read_objects(load: Load, *kinds: str) -> list[dict[str, Any]]:
    """List all objects of these kinds.

    Raises ApiError.
    """
    server = ApiServer(load)
    try:
        return [each for kind in kinds for each in await list_objects(server, kind, PATHS[kind])]
    finally:
        await server.close()


async def list_objects(
    server: ApiServer, kind: str, path: str, keep: Callable[[dict[str, Any]], bool] | None = None
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
            page = msgspec.json.decode(body, type=Page[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise ApiError(200, f"{path}: no list: {error}") from error
        found.extend({**item, "kind": kind} for item in page.items or () if keep is None or keep(item))
        token = page.metadata.more
        if not token:
            return found
