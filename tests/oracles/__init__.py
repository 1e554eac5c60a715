# SPDX-License-Identifier: Apache-2.0
"""Oracles: a second, slow implementation of Kubernetes' own rules, which imports nothing of the product."""
