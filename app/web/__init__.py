# SPDX-License-Identifier: Apache-2.0
"""The web page and the JSON answers for people: routes, live updates, and the views they show."""
