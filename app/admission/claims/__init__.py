# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaims of DRA that stand for what a pod requests as resources of a device plugin."""
