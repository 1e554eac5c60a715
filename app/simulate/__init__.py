# SPDX-License-Identifier: Apache-2.0
"""The placement benchmark: a trace's pods arrive one by one, and our engine and a model of kube-scheduler seat them."""
