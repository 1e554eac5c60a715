# SPDX-License-Identifier: Apache-2.0
"""The webhook, extender and operations routes (docs/reference/listeners.md#routes): request bytes in, answer bytes out."""
