# SPDX-License-Identifier: Apache-2.0
"""Policy: the documents people write, checked, matched, merged and compiled into a Demand."""
