# SPDX-License-Identifier: Apache-2.0
"""The web page, as plain values: what is shown of the fleet, the waiting pods, the policies and the decisions."""
