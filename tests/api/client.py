# SPDX-License-Identifier: Apache-2.0
"""A client of the TLS application in memory, over the whole ASGI stack and without a socket."""

import asyncio
import base64
import json
from collections.abc import AsyncIterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx

from app.api.app import create_tls_app
from app.server.service import Service
from app.telemetry.metrics import Metrics
from tests.builders import make_service


@cache
def demo_service() -> Service:
    """Return the demo service that tests share; none of them changes it."""
    return make_service(Path(mkdtemp()))


def post(path: str, body: bytes | AsyncIterable[bytes], service: Service | None = None) -> httpx.Response:
    """Post a body over the ASGI stack."""

    async def send() -> httpx.Response:
        app = create_tls_app(service or demo_service(), Metrics())
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1") as client:
            return await client.post(path, content=body)

    return asyncio.run(send())


def reviewed(review: Any, verb: str = "mutate", service: Service | None = None) -> dict[str, Any]:
    """Post an AdmissionReview, and return the response member of the answer."""
    answer = post(f"/{verb}", json.dumps(review).encode(), service)
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()["response"]
    return response


def patch_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Decode a response's JSON Patch; an empty list where there is none."""
    operations: list[dict[str, Any]] = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return operations
