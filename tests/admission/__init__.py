# SPDX-License-Identifier: Apache-2.0
"""Tests of what admission changes in a pod, and of what it refuses."""
