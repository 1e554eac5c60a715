# SPDX-License-Identifier: Apache-2.0
"""Logs, metrics, traces, the record of decisions, and the wall clock for edges."""
