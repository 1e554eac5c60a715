# SPDX-License-Identifier: Apache-2.0
"""Cluster: what is known of nodes and pods, and the one place where state changes."""
