# SPDX-License-Identifier: Apache-2.0
"""The values that the web page shows: fleet, pending pods, policies and decisions."""
