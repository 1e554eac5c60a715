# SPDX-License-Identifier: Apache-2.0
"""The listeners: composition of the service, accepting and bounding connections, HTTP protocol, signals, watchdog."""
