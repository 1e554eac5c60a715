# SPDX-License-Identifier: Apache-2.0
"""The model of a node, and its reading from labels, resource counts, GPU health and DRA devices."""
