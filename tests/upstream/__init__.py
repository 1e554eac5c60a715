# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own end-to-end suite on real nodes, without and with gpu-usher: what differs."""
