# SPDX-License-Identifier: Apache-2.0
"""Tests of what an operator sees: metrics, alerts, dashboard, log."""
