# SPDX-License-Identifier: Apache-2.0
"""The doctor: checks that name what is wrong with a fleet or around it, each with a remedy."""
