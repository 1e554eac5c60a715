# SPDX-License-Identifier: Apache-2.0
"""The demo: sample fleets, and recorded requests that are sent to a service with them."""
