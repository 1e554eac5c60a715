# SPDX-License-Identifier: Apache-2.0
"""kube-scheduler's own checks, in its own words, so that an explanation is complete."""
