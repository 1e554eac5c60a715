# SPDX-License-Identifier: Apache-2.0
"""Tests of what is changed in, or refused of, a pod at the door."""
