# SPDX-License-Identifier: Apache-2.0
"""The web page in a real browser: Chromium without a window, driven by Playwright, on loopback only."""
