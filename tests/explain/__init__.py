# SPDX-License-Identifier: Apache-2.0
"""Tests of the documents people write and of what is compiled from them."""
