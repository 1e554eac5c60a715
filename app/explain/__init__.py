# SPDX-License-Identifier: Apache-2.0
"""Explain: why a pod was changed, refused or seated where it was."""
