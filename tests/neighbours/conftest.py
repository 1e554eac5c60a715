# SPDX-License-Identifier: Apache-2.0
"""The control plane of the scenarios of tests/e2e, for the neighbours that run beside one."""

from tests.e2e.conftest import binaries, plane

__all__ = ["binaries", "plane"]
