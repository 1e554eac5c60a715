# SPDX-License-Identifier: Apache-2.0
"""The real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl."""
