# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation as kube-scheduler does it: devices, claims, and which devices a claim can get."""
