# SPDX-License-Identifier: Apache-2.0
"""Demo: an embedded fleet, and the recorded payloads played against it."""
