# SPDX-License-Identifier: Apache-2.0
"""Events: why GPU pods wait, on the pods and on the workloads that they belong to."""
