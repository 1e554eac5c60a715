# SPDX-License-Identifier: Apache-2.0
"""Tests of the HTTP routes: bytes in, bytes out."""
