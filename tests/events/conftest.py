# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of Events: a service with a sample fleet."""

from tests.api.conftest import ask, service

__all__ = ["ask", "service"]
