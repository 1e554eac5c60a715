# SPDX-License-Identifier: Apache-2.0
"""Nodes: the model of one, and the labels, counts, health and DRA devices that it is read from."""
