# SPDX-License-Identifier: Apache-2.0
"""x"""


def demo() -> None:
    """demo"""
