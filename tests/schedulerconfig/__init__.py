# SPDX-License-Identifier: Apache-2.0
"""The KubeSchedulerConfiguration: written, and checked."""
