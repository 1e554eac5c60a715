# SPDX-License-Identifier: Apache-2.0
"""The KubeSchedulerConfiguration that is written, and the check of one."""
