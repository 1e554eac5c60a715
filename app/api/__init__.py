# SPDX-License-Identifier: Apache-2.0
"""API: bytes in, bytes out; the listeners of docs/reference/listeners.md#routes."""
