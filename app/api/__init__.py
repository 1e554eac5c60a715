# SPDX-License-Identifier: Apache-2.0
"""The webhook, extender and operations routes (docs/reference/listeners.md#routes): body bytes in, answer bytes out."""
