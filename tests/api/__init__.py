# SPDX-License-Identifier: Apache-2.0
"""Tests of the edges that speak HTTP: bytes in, bytes out."""
