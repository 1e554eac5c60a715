# SPDX-License-Identifier: Apache-2.0
"""The cluster as the allocator sees it: slices, classes, taint rules, claims, and what is allocated."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.dra.allocated import AllocatedDevices
from app.dra.pools import PoolIndex
from app.kube.device_classes import DeviceClass, DeviceTaintRule
from app.kube.resource_claims import ResourceClaim


@dataclass(frozen=True, slots=True)
class ClusterDevices:
    """All facts about devices: slices by pool, DeviceClasses by name, DeviceTaintRules, and what claims have.

    `claims` and `templates` are by namespace/name.
    """

    pools: PoolIndex = field(default_factory=PoolIndex)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    allocated: AllocatedDevices = field(default_factory=AllocatedDevices)
    claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[str, ResourceClaim] = field(default_factory=dict)
