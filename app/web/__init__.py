# SPDX-License-Identifier: Apache-2.0
"""The web UI and its JSON API: routes, live updates, and the views that they show."""
