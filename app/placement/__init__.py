# SPDX-License-Identifier: Apache-2.0
"""Placement: which nodes a demand fits, their scores, and which candidates for preemption would help."""
