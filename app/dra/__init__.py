# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation: what devices are, and which of them a claim selects."""
