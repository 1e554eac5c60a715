# SPDX-License-Identifier: Apache-2.0
"""The manifests in deploy/ agree with the code."""
