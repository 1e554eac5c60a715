# SPDX-License-Identifier: Apache-2.0
"""Tests of the documents that people write, and of what they are compiled to."""
