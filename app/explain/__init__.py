# SPDX-License-Identifier: Apache-2.0
"""Explain: why a pod was changed, refused or placed, and what would let it run."""
