# SPDX-License-Identifier: Apache-2.0
"""Tests of the state, and of what is remembered about it."""
