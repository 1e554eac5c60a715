# SPDX-License-Identifier: Apache-2.0
"""The keeper of certificates: the only identity of ours that writes, and only what is named here."""
