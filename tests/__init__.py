# SPDX-License-Identifier: Apache-2.0
"""Tests: one folder a layer. A test's name is what it proves; rows of FEATURES and PAINS stand in docstrings."""
