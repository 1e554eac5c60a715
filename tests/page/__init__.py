# SPDX-License-Identifier: Apache-2.0
"""The web page without a browser: what is shown, the HTML that it becomes, and the events."""
