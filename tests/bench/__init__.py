# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: the budgets of INTERFACES §12, as CPU time of the serving thread and as ratios within one run."""
