# SPDX-License-Identifier: Apache-2.0
"""A corpus of GPU workloads as projects document them, and what is right for each."""
