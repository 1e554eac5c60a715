# SPDX-License-Identifier: Apache-2.0
"""Draws nodes with devices of every kind, and claims for them, for the real API server and scheduler (S13, F135)."""

import random
from dataclasses import dataclass, field

from tests.controlplane.kubectl import Object

DRIVERS = ("gpu.example.com", "net.example.com")
GPU, NET = DRIVERS
MODELS = ("a100", "h100", "l4")
MEMORY = {"a100": "80Gi", "h100": "96Gi", "l4": "24Gi"}
VERSIONS = ("550.54.15", "570.124.6", "580.95.5")
CLASSES = {
    "gpu": f"device.driver == '{GPU}'",
    "h100": f"device.driver == '{GPU}' && device.attributes['{GPU}'].model == 'h100'",
    "net": f"device.driver == '{NET}'",
}
CONDITIONS = (
    f"device.attributes['{GPU}'].model == 'a100'",
    f"device.attributes['{GPU}'].model in ['a100', 'l4']",
    f"device.attributes['{GPU}'].numa == 0",
    f"device.capacity['{GPU}'].memory.compareTo(quantity('40Gi')) >= 0",
    f"device.attributes['{GPU}'].driverVersion.isGreaterThan(semver('560.0.0'))",
    f"'fast' in device.attributes['{GPU}'] && device.attributes['{GPU}'].fast",
    f"has(device.attributes['{GPU}'].link) && device.attributes['{GPU}'].link >= 4",
)
FAILING = f"device.attributes['{GPU}'].link >= 2"
"""A condition that fails on devices without the attribute, with which kube-scheduler gives up on the pod."""
RACKS = ("r0", "r1")


def device_class(name: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": CLASSES[name]}}]}}


@dataclass
class DrawnDevices:
    """Draws slices by one seed. `slices` are documents of resource.k8s.io/v1."""

    chance: random.Random
    slices: list[Object] = field(default_factory=list)

    def node(self, name: str) -> None:
        """Draw the slices of one node: plain, partitioned or shared devices, in one pool or with counters apart."""
        kind = self.chance.choice(("plain", "plain", "partitioned", "shared", "tainted"))
        model = self.chance.choice(MODELS)
        devices = [self._gpu(f"d{number}", model, kind) for number in range(self.chance.randint(1, 6))]
        if kind == "partitioned":
            counters = [{"name": f"g{number}", "counters": {"slices": {"value": "7"}}} for number in range(2)]
            self._add(f"{name}-a", name, devices, size=2, nodeName=name)
            self._add(f"{name}-b", name, [], size=2, nodeName=name, sharedCounters=counters)
        elif len(devices) > 2 and self.chance.random() < 0.3:
            self._add(f"{name}-b", name, devices[:2], size=2, nodeName=name)
            self._add(f"{name}-a", name, devices[2:], size=2, nodeName=name)
        else:
            self._add(f"{name}-a", name, devices, nodeName=name)

    def shared_pools(self) -> None:
        """Add devices of all nodes, of a rack, and of nodes that each device names for itself."""
        self._add("fabric", "fabric", [self._nic(f"n{number}") for number in range(3)], driver=NET, allNodes=True)
        for rack in RACKS:
            chosen = {"matchExpressions": [{"key": "rack", "operator": "In", "values": [rack]}]}
            nics = [self._nic(f"n{number}") for number in range(4)]
            self._add(f"rack-{rack}", rack, nics, driver=NET, nodeSelector={"nodeSelectorTerms": [chosen]})
        named = [{**self._nic(f"n{number}"), "nodeName": f"node-{number}"} for number in range(4)]
        self._add("named", "named", named, driver=NET, perDeviceNodeSelection=True)
        self._add("missing", "missing", [self._nic("n0")], size=2, driver=NET, nodeName="node-0")

    def _add(
        self, name: str, pool: str, devices: list[Object], size: int = 1, driver: str = GPU, **spec: object
    ) -> None:
        facts = {"driver": driver, "pool": {"name": pool, "generation": 1, "resourceSliceCount": size}, **spec}
        self.slices.append({"metadata": {"name": name}, "spec": {**facts, **({"devices": devices} if devices else {})}})

    def _gpu(self, name: str, model: str, kind: str) -> Object:
        chance = self.chance
        attributes: Object = {
            "model": {"string": model},
            "numa": {"int": chance.randint(0, 1)},
            "driverVersion": {"version": chance.choice(VERSIONS)},
        }
        if chance.random() < 0.5:
            attributes["fast"] = {"bool": chance.random() < 0.5}
        if chance.random() < 0.8:
            attributes["link"] = {"int": chance.randint(1, 6)}
        device: Object = {"name": name, "attributes": attributes, "capacity": {"memory": {"value": MEMORY[model]}}}
        if kind == "partitioned":
            used = {"slices": {"value": str(chance.randint(1, 7))}}
            device["consumesCounters"] = [{"counterSet": f"g{chance.randint(0, 1)}", "counters": used}]
        if kind == "shared":
            device["allowMultipleAllocations"] = True
            policy = {"default": "8Gi", "validRange": {"min": "4Gi", "max": "20Gi", "step": "4Gi"}}
            device["capacity"]["memory"]["requestPolicy"] = policy
        if kind == "tainted" and chance.random() < 0.5:
            device["taints"] = [{"key": "sick", "value": "yes", "effect": chance.choice(("NoSchedule", "None"))}]
        return device

    def _nic(self, name: str) -> Object:
        return {"name": name, "attributes": {"numa": {"int": self.chance.randint(0, 1)}}}


@dataclass
class DrawnClaims:
    """Draws the requests of claims by one seed."""

    chance: random.Random

    def spec(self) -> Object:
        """Draw the spec of one claim."""
        chance = self.chance
        requests = [self._request(f"r{number}") for number in range(chance.choice((1, 1, 1, 2, 3)))]
        everything = "'All'" in repr(requests)
        constraints: list[Object] = []
        if not everything and chance.random() < 0.3:
            kind = chance.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
            constraints = [{kind: f"{GPU}/{chance.choice(('numa', 'model', 'link'))}"}]
        return {"devices": {"requests": requests, "constraints": constraints}}

    def _request(self, name: str) -> Object:
        if self.chance.random() < 0.8:
            return {"name": name, "exactly": self._body()}
        alternatives = [{"name": f"s{number}", **self._body()} for number in range(self.chance.randint(1, 3))]
        return {"name": name, "firstAvailable": alternatives}

    def _body(self) -> Object:
        chance = self.chance
        name = chance.choice(("gpu", "gpu", "gpu", "h100", "net"))
        body: Object = {
            "deviceClassName": name,
            "allocationMode": "ExactCount",
            "count": chance.choice((1, 1, 1, 2, 3)),
        }
        if chance.random() < 0.1:
            body = {"deviceClassName": name, "allocationMode": "All"}
        if name != "net":
            conditions = chance.sample(CONDITIONS, chance.choice((0, 0, 1, 1, 2)))
            conditions += [FAILING] if chance.random() < 0.03 else []
            body["selectors"] = [{"cel": {"expression": condition}} for condition in conditions]
            if chance.random() < 0.2:
                body["capacity"] = {"requests": {"memory": chance.choice(("2Gi", "6Gi", "20Gi", "40Gi"))}}
        if chance.random() < 0.2:
            body["tolerations"] = [{"key": "sick", "operator": "Exists", "effect": "NoSchedule"}]
        return body
