# SPDX-License-Identifier: Apache-2.0
"""The tools of `make release` and `make verify-release`, and their tests."""
