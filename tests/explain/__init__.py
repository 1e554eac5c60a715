# SPDX-License-Identifier: Apache-2.0
"""Tests of explanations, of the inventory and of previews."""
