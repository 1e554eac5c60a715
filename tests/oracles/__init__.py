# SPDX-License-Identifier: Apache-2.0
"""Oracles: Kubernetes' own rules, written a second time, slowly; they import nothing of the product."""
