# SPDX-License-Identifier: Apache-2.0
"""The API server by kubectl, where the output for a person matters, and by plain HTTP, where many objects are moved."""

import json
import ssl
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

KUBECTL_SECONDS = 60
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubectlResult:
    """The exit code and the output of kubectl."""

    code: int
    out: str
    err: str

    @property
    def warnings(self) -> list[str]:
        """The warnings, as the person at the terminal sees them."""
        return [line.removeprefix("Warning: ") for line in self.err.splitlines() if line.startswith("Warning: ")]


class Kubectl:
    """kubectl with a kubeconfig."""

    def __init__(self, command: tuple[str, ...], kubeconfig: Path) -> None:
        self._command = (*command, f"--kubeconfig={kubeconfig}")

    def __call__(self, *words: str, stdin: str | None = None) -> KubectlResult:
        """Run kubectl with these arguments."""
        done = subprocess.run(
            [*self._command, *words], input=stdin, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False
        )
        return KubectlResult(done.returncode, done.stdout, done.stderr)

    def gone(self, *words: str) -> bool:
        """Whether none of these objects is there any longer, those with finalizers included."""
        result = self("get", *words, "--ignore-not-found", "-o", "name")
        return (result.code, result.out) == (0, "")

    def create(self, *objects: Object, dry_run: bool = False) -> KubectlResult:
        """Create objects as `kubectl create -f -` does."""
        words = ["create", "-f", "-", *(["--dry-run=server", "-o", "json"] if dry_run else [])]
        return self(*words, stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))


class Api:
    """The API server over HTTP; an answer that is an error raises AssertionError with its message."""

    def __init__(self, url: str, ca: Path, token: str) -> None:
        self._made_of = (url, ca, token)
        self.client = httpx.Client(
            base_url=url,
            verify=ssl.create_default_context(cafile=str(ca)),
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=60,
        )

    @contextmanager
    def like(self) -> "Iterator[Api]":
        """Open another client with connections of its own, for another thread."""
        other = Api(*self._made_of)
        with other.client:
            yield other

    def try_create(self, path: str, document: Object) -> httpx.Response:
        """Post an object, and return the answer, whatever it is."""
        return self.client.post(path, json=document)

    def create(self, path: str, document: Object) -> Object:
        """Post an object."""
        return _object(self.client.post(path, json=document))

    def create_all(self, path: str, documents: Iterable[Object]) -> None:
        """Post many objects over one connection."""
        for document in documents:
            self.create(path, document)

    def get(self, path: str, **params: str) -> Object:
        """Read an object or a list."""
        return _object(self.client.get(path, params=params))

    def items(self, path: str, **params: str) -> list[Object]:
        """Read the items of a list."""
        objects: list[Object] = self.get(path, **params)["items"] or []
        return objects

    def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        """Change an object by merge patch."""
        return _object(
            self.client.patch(
                path, content=json.dumps(change), headers={"Content-Type": "application/merge-patch+json"}
            )
        )

    def delete(self, path: str, **params: Any) -> None:
        """Delete an object or a collection at once; one that does not exist is no error."""
        answer = self.client.delete(path, params={"gracePeriodSeconds": 0, "propagationPolicy": "Background", **params})
        assert answer.status_code in (200, 202, 404), answer.text[:500]


def _object(answer: httpx.Response) -> Object:
    assert answer.is_success, f"{answer.request.method} {answer.request.url.path}: {answer.text[:800]}"
    document: Object = answer.json()
    return document
