# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the API tests: one service in memory, and a way to ask any of its three applications."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from app.server.service import Service
from tests.builders import make_service

Ask = Callable[..., httpx.Response]
"""(application, method, path, anything httpx takes) → the answer; an exception of the application is a 500."""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """Make the demo service; no test changes it."""
    return make_service(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="session")
def ask() -> Ask:
    """Give the function that sends one request through an application's whole ASGI stack."""

    def send(app: ASGIApp, method: str, path: str, host: str = "127.0.0.1", **request: Any) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
                return await client.request(method, path, **request)

        return asyncio.run(exchange())

    return send
