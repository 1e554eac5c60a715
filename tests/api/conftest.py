# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the API tests: one service in memory, and a function that sends a request to any of its applications."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from app.server.service import Service
from tests.builders import make_service

Ask = Callable[..., httpx.Response]
"""(application, method, path, further httpx arguments) → the answer. An exception of the application becomes a 500."""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """Make the demo service, which no test changes."""
    return make_service(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="session")
def ask() -> Ask:
    """Return the function that sends one request over an application's whole ASGI stack."""

    def send(app: ASGIApp, method: str, path: str, host: str = "127.0.0.1", **request: Any) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, **request)

        return asyncio.run(exchange())

    return send
