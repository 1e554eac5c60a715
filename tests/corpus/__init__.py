# SPDX-License-Identifier: Apache-2.0
"""A corpus of GPU workloads as projects document them, and the expected result for each."""
