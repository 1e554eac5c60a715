# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation as kube-scheduler does it: devices, selectors, claims, and what a claim can get."""
