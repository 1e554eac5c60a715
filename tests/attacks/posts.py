# SPDX-License-Identifier: Apache-2.0
"""Attacks with the content of bodies: large policies, ConfigMaps and pods, each sent again and again."""

from tests.attacks.target import Attack

POST_ATTACKS: tuple[Attack, ...] = ()
