# SPDX-License-Identifier: Apache-2.0
"""Tests of fleets as they would be."""
