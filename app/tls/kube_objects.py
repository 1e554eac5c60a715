# SPDX-License-Identifier: Apache-2.0
"""The few objects of the API server that the keeper of certificates reads and writes, each by its path."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
from kubernetes.client import Configuration

from app.cluster.access import Load, credentials, read_access
from app.values.errors import ApiError, BadInput

ANSWER_SECONDS = 10.0
"""Bound on one request; a turn has about seven, and the lease must not run out over one that hangs."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
CONFLICT = 409
Object = dict[str, Any]


class Connection(NamedTuple):
    """A client, and what it was made of."""

    configuration: Configuration
    client: httpx.Client
    extensions: dict[str, Any]


class KubeClient:
    """A connection that is made at the first request, and anew after credentials were refused."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._made: Connection | None = None

    def read(self, path: str) -> Object | None:
        """Read an object; None where there is none.

        Raises ApiError.
        """
        try:
            return self._ask("GET", path, None, "application/json")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def replace(self, path: str, document: Mapping[str, Any]) -> Object:
        """Write an object whole; its resourceVersion says what was read before.

        Raises ApiError, with status CONFLICT where somebody was faster.
        """
        return self._ask("PUT", path, document, "application/json")

    def patch(self, path: str, change: Mapping[str, Any], kind: str = STRATEGIC) -> Object:
        """Change fields of an object.

        Raises ApiError, with status CONFLICT where the change names a resourceVersion that is past.
        """
        return self._ask("PATCH", path, change, kind)

    def close(self) -> None:
        """Close the connection."""
        if self._made is not None:
            self._made.client.close()
            self._made = None

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, kind: str) -> Object:
        try:
            made = self._made = self._made or _connect(self._load())
            answer = made.client.request(
                method,
                path,
                content=None if body is None else json.dumps(body),
                headers={"Accept": "application/json", "Content-Type": kind, **credentials(made.configuration)},
                extensions=made.extensions,
            )
        except (httpx.HTTPError, BadInput) as error:
            raise ApiError(None, f"{method} {path}: {error or type(error).__name__}") from error
        if answer.status_code == 401:
            self.close()
        if not answer.is_success:
            raise ApiError(answer.status_code, f"{method} {path}: {answer.status_code}: {_words(answer)}")
        found: Object = answer.json()
        return found


def _connect(configuration: Configuration) -> Connection:
    reached = read_access(configuration)
    client = httpx.Client(
        base_url=reached.url,
        verify=reached.context or True,
        proxy=reached.proxy,
        timeout=ANSWER_SECONDS,
        trust_env=False,
    )
    return Connection(configuration, client, {"sni_hostname": reached.server_name} if reached.server_name else {})


def _words(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return answer.text[:100]
