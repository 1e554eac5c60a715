# SPDX-License-Identifier: Apache-2.0
"""The placement benchmark: pods of a trace arrive one by one, and our engine and a kube-scheduler model place them."""
