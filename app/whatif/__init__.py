# SPDX-License-Identifier: Apache-2.0
"""What if: a fleet as it would be with another driver, another MIG layout, another node; and what pods make of it."""
