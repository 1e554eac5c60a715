# SPDX-License-Identifier: Apache-2.0
"""Tests of the words and numbers that everything else uses."""
