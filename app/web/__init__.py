# SPDX-License-Identifier: Apache-2.0
"""The web UI and its JSON API: routes, and the views that they show."""
