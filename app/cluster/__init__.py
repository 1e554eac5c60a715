# SPDX-License-Identifier: Apache-2.0
"""The state of the cluster: watches, the index of nodes and pods, caches of decisions. State changes only here."""
