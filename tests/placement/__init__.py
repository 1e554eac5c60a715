# SPDX-License-Identifier: Apache-2.0
"""Tests of filters, scorers, engine and preemption."""
