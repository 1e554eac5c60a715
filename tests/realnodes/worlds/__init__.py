# SPDX-License-Identifier: Apache-2.0
"""Nodes for real components: the tables models.txt, profiles.txt and worlds.txt, read into machines and settings."""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.realnodes.nvml_config import Gpu, Machine, MigInstance, make_uuid

HERE = Path(__file__).parent
PROFILE = re.compile(r"(?:(?P<part>\d)c\.)?(?P<whole>\dg\.\w+(?:\+me)?)(?:\*(?P<times>\d))?")
"""A MIG profile, where `1c.` is a part of the instance that follows, and how many of them: 1g.10gb*7."""
COMPUTE_PROFILES = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}
"""Slices → the NVML_COMPUTE_INSTANCE_PROFILE_* number of nvml.h."""
CLUSTER = "00000000-0000-0000-0000-000000000001"
"""The NVLink fabric that GPUs of models with one are in, in the recorded worlds."""
MPS_ROOT = "/run/nvidia/mps"
"""The folder on the host where the MPS daemon's sockets are, as in the device plugin's Helm chart."""
FIRST_BUS, BUS_STEP = 0x10, 0x08
"""PCI buses of the GPUs: above those that a virtual machine has, so that nothing is read of the host's devices."""


@dataclass(frozen=True, slots=True)
class World:
    """A machine, and the settings of the device plugin and of gpu-feature-discovery for it."""

    name: str
    machine: Machine
    strategy: str
    sharing: str

    @property
    def uses_mps(self) -> bool:
        """Whether GPUs are shared by MPS."""
        return self.sharing.startswith("mps")

    def settings(self) -> str:
        """Write the configuration file that both components take (k8s-device-plugin's api/config/v1); JSON is YAML."""
        document: dict[str, Any] = {"version": "v1", "flags": {"migStrategy": self.strategy}}
        kind, *resources = self.sharing.split()
        if resources:
            pairs = [resource.split(":") for resource in resources]
            shared = {"resources": [{"name": f"nvidia.com/{name}", "replicas": int(count)} for name, count in pairs]}
            if kind == "mps":
                document["flags"]["mpsRoot"] = MPS_ROOT
                document["sharing"] = {"mps": shared}
            else:
                document["sharing"] = {"timeSlicing": {"renameByDefault": kind == "rename", **shared}}
        return json.dumps(document, indent=2)


@functools.cache
def list_worlds() -> Mapping[str, World]:
    """Read worlds.txt: world → its machine and settings."""
    return {row["world"]: make_world(row["world"], row["world"]) for row in _read_table("worlds.txt")}


def make_world(world: str, node: str) -> World:
    """Make the world of a row of worlds.txt for a node; GPUs of different nodes have different UUIDs."""
    row = _find_row("worlds.txt", world=world)
    machine = make_machine(node, row["GPUs"], row["driver"], row["CUDA"])
    return World(world, machine, row["strategy"], row["sharing"])


def make_machine(node: str, gpus: str, driver: str, cuda: str) -> Machine:
    """Make the machine of a node; its GPUs are written as in worlds.txt: `8 A100`, `1 A100: 3g.40gb*2; 1 A100`.

    Raises KeyError for a model or a profile that the tables lack, ValueError for what is no profile.
    """
    made: list[Gpu] = []
    for group in gpus.split(";"):
        models, _, layout = group.partition(":")
        count, model = models.split(maxsplit=1)
        made += [_make_gpu(node, len(made) + index, model.strip(), layout) for index in range(int(count))]
    return Machine(driver, cuda, tuple(made))


def _make_gpu(node: str, index: int, model: str, layout: str) -> Gpu:
    row = _find_row("models.txt", model=model)
    capable = "disabled" if row["MIG"] == "yes" else "unsupported"
    return Gpu(
        name=row["name"],
        uuid=make_uuid("GPU", node, index),
        bus=f"0000:{FIRST_BUS + index * BUS_STEP:02x}:00.0",
        minor=index,
        memory=int(row["memory"]),
        compute=row["compute"],
        mig="enabled" if layout.strip() else capable,
        cluster=CLUSTER if row["fabric"] == "yes" else "",
        instances=_make_instances(node, index, model, layout),
    )


def _make_instances(node: str, index: int, model: str, layout: str) -> tuple[MigInstance, ...]:
    """Make MIG devices; parts of one profile share a GPU instance until it is full."""
    made: list[MigInstance] = []
    gi, used, open_profile = 0, 0, ""
    for word in layout.split():
        match = PROFILE.fullmatch(word)
        if match is None:
            raise ValueError(f"no MIG profile: {word}, wants such as 1g.10gb or 1c.3g.40gb*3")
        row = _find_row("profiles.txt", model=model, profile=match["whole"])
        slices = int(row["slices"])
        part = int(match["part"] or slices)
        for _ in range(int(match["times"] or 1)):
            if match["whole"] != open_profile or used + part > slices:
                gi, used, open_profile = gi + 1, 0, match["whole"]
            ci = sum(other.gi == gi for other in made)
            used += part
            made.append(_make_instance(make_uuid("MIG", node, index, gi, ci), gi, ci, part, row))
    return tuple(made)


def _make_instance(uuid: str, gi: int, ci: int, part: int, row: Mapping[str, str]) -> MigInstance:
    return MigInstance(
        uuid=uuid,
        gi=gi,
        ci=ci,
        gi_profile=int(row["number"]),
        ci_profile=COMPUTE_PROFILES[part],
        gi_slices=int(row["slices"]),
        ci_slices=part,
        memory=int(row["memory"]),
        multiprocessors=int(row["multiprocessors"]) * part // int(row["slices"]),
        copy_engines=int(row["copy"]),
        decoders=int(row["decoders"]),
        encoders=int(row["encoders"]),
        jpegs=int(row["jpegs"]),
        ofas=int(row["ofas"]),
    )


def _find_row(file: str, **wanted: str) -> Mapping[str, str]:
    for row in _read_table(file):
        if all(row[column] == value for column, value in wanted.items()):
            return row
    raise KeyError(f"{file} has no {' '.join(wanted.values())}")


@functools.cache
def _read_table(file: str) -> tuple[Mapping[str, str], ...]:
    """Read a table: lines that begin with # do not count, the first other line has the columns' names."""
    lines = (HERE / file).read_text("utf-8").splitlines()
    head, *rows = ([cell.strip() for cell in line.split("|")] for line in lines if not line.startswith("#"))
    return tuple(dict(zip(head, row, strict=True)) for row in rows)
