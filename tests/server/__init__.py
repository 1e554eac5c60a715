# SPDX-License-Identifier: Apache-2.0
"""Tests of app.server: over real sockets, with short limits; no assertion on the clock but bounded waits."""
