# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: the budgets, measured as CPU time of the serving thread and as ratios within one run.

See docs/reference/requirements.md#budgets.
"""
