# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the web UI's tests: those of the routes."""

from tests.api.conftest import ask, service

__all__ = ["ask", "service"]
