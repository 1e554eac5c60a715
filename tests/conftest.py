# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests: generated inputs are the same on every machine, and never judged by the clock."""

from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")
