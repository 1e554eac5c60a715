# SPDX-License-Identifier: Apache-2.0
"""Tests: one folder per layer. A test's name is what it proves; docstrings name rows of docs/features.md and of
tests/results/pains.md.
"""
