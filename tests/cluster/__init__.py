# SPDX-License-Identifier: Apache-2.0
"""Tests of the cluster state, and of what is cached about it."""
