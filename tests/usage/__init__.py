# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs over time: tables and advice."""
