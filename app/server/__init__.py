# SPDX-License-Identifier: Apache-2.0
"""How connections are accepted, read, bounded and ended: uvicorn's protocol on httptools, with limits of our own."""
