# SPDX-License-Identifier: Apache-2.0
"""Kubernetes JSON read into facts: pods and what they request, what holds GPUs, DRA objects."""
