# SPDX-License-Identifier: Apache-2.0
"""Attacks of callers without credentials on a real replica process; `python -m tests.attacks` runs them."""
