# SPDX-License-Identifier: Apache-2.0
"""A small client for the objects that our controllers read and write, each by its path."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx
from kubernetes.client import Configuration

from app.cluster.kubeconfig import Load, credentials, read_access
from app.values.errors import ApiError, BadInput

ANSWER_SECONDS = 10.0
"""Limit of connecting, and of each wait for bytes of an answer. It is less than DURATION_SECONDS of tls/lease.py, so
that the Lease does not expire while one request hangs."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
CONFLICT = 409
Object = dict[str, Any]


class Connection(NamedTuple):
    """An HTTP client and the configuration that it was made from."""

    configuration: Configuration
    client: httpx.Client
    extensions: dict[str, Any]


class KubeClient:
    """A client that connects at the first request, and again after credentials were refused."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._connection: Connection | None = None

    def read(self, path: str) -> Object | None:
        """Read an object; None if it does not exist.

        Raises ApiError.
        """
        try:
            return self._request("GET", path, None, "application/json")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, path: str, document: Mapping[str, Any]) -> Object:
        """Create an object in the list at a path.

        Raises ApiError, with status CONFLICT if an object of that name exists.
        """
        return self._request("POST", path, document, "application/json")

    def replace(self, path: str, document: Mapping[str, Any]) -> Object:
        """Replace an object; its resourceVersion guards the write.

        Raises ApiError, with status CONFLICT if the object has changed.
        """
        return self._request("PUT", path, document, "application/json")

    def patch(self, path: str, change: Mapping[str, Any], kind: str = STRATEGIC) -> Object:
        """Change fields of an object.

        Raises ApiError, with status CONFLICT if the change names an outdated resourceVersion.
        """
        return self._request("PATCH", path, change, kind)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.client.close()
            self._connection = None

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, kind: str) -> Object:
        try:
            connection = self._connection = self._connection or _connect(self._load())
            answer = connection.client.request(
                method,
                path,
                content=None if body is None else json.dumps(body),
                headers=[
                    ("Accept", "application/json"),
                    ("Content-Type", kind),
                    *credentials(connection.configuration),
                ],
                extensions=connection.extensions,
            )
        except (httpx.HTTPError, BadInput) as error:
            raise ApiError(None, f"{method} {path}: {error or type(error).__name__}") from error
        if answer.status_code == 401:
            self.close()
        if not answer.is_success:
            raise ApiError(answer.status_code, f"{method} {path}: {answer.status_code}: {_error_message(answer)}")
        document: Object = answer.json()
        return document


def _connect(configuration: Configuration) -> Connection:
    access = read_access(configuration)
    client = httpx.Client(
        base_url=access.url,
        verify=access.context or True,
        proxy=access.proxy,
        timeout=ANSWER_SECONDS,
        trust_env=False,
    )
    return Connection(configuration, client, {"sni_hostname": access.server_name} if access.server_name else {})


def _error_message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return answer.text[:100]
