# SPDX-License-Identifier: Apache-2.0
"""Placement: which nodes a demand fits, how well, and whom preemption may evict for it."""
