# SPDX-License-Identifier: Apache-2.0
"""Scenarios on the real control plane: kube-apiserver calls the webhooks, kube-scheduler calls the extender."""
