# SPDX-License-Identifier: Apache-2.0
"""What if: a fleet with another driver, MIG layout or node, and what that means for its pods."""
