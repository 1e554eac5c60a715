# SPDX-License-Identifier: Apache-2.0
"""Admission: what the webhooks change in a pod, and why they refuse one."""
