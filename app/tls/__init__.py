# SPDX-License-Identifier: Apache-2.0
"""Certificates: our own authority, what is served, renewal, and the keeper of those of a cluster."""
