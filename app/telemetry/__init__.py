# SPDX-License-Identifier: Apache-2.0
"""Logs, metrics, and the wall clock for the edges of the program."""
