# SPDX-License-Identifier: Apache-2.0
"""Nodes of the sample fleets are read as what the fleets' files mean (S1-S4, S9, S15)."""

import pytest

from app.demo.notation import fleet_names
from app.nodes.model import Node, Sharing
from app.placement.engine import judge
from tests.builders import demand, gpus, pod
from tests.demo.fleets import state

UNITS = {
    Sharing.Exclusive: "whole",
    Sharing.TimeSlicing: "time-sliced",
    Sharing.MPS: "MPS",
    Sharing.MIG: "slices",
    Sharing.Unknown: "whole or share",
}


def described(node: Node) -> str:
    """Write what was read from a node: product, what is offered and of what kind, what is wrong, and undeclared
    memory."""
    node_class = node.node_class
    names = {
        "nvidia.com/gpu": UNITS[node_class.sharing],
        "nvidia.com/gpu.shared": f"shared {UNITS[node_class.renamed_sharing]}",
    }
    words = [node_class.product or "unknown"]
    words += [
        f"{amount} {names.get(resource, resource.removeprefix('nvidia.com/'))}"
        for resource, amount in node_class.offered
    ]
    words += [f"of {node_class.mig_profile}"] * (node_class.mig_profile is not None) + [f"by {node_class.replicas}"] * (
        node_class.replicas > 1
    )
    words += ["by DRA"] * ("nvidia.com/gpu" in node_class.dra_resources) + ["invalid"] * node_class.mig_invalid
    words += [f"layout {node_class.mig_state}"] * (node_class.mig_state not in (None, "success"))
    words += [node_class.upgrade_state or ""] * (node_class.upgrade_state not in (None, "upgrade-done"))
    promised = (
        node_class.labelled_gpus
        and not node_class.dra_resources
        and not any(amount for _, amount in node_class.offered)
    )
    words += [f"but {node_class.labelled_gpus} promised"] * bool(promised)
    problems = [f"{node_class.withdrawn} withdrawn"] * (node_class.withdrawn > 0) + ["stale labels"] * node_class.stale
    problems += [f"{left} MiB left" for left in node.free.memory.values()]
    return ", ".join([" ".join(words), *problems])


MEANT: dict[str, dict[str, str]] = {
    "aks": {
        "aks-t4-12345678-vmss000000": "t4 1 whole or share",
        "aks-a100-12345678-vmss000000": "a100-80gb-pcie 4 whole",
        "aks-spot-12345678-vmss000000": "a100-80gb-pcie 1 whole or share",
        "aks-nap-a100-x2x4z": "a100-sxm4-80gb 8 whole or share",
        "aks-system-12345678-vmss000000": "unknown",
    },
    "dgx": {
        "dgx-h100-0": "h100-80gb-hbm3 8 whole",
        "hgx-h200-1": "h200 8 whole",
        "dgx-b200-0": "b200 8 whole",
        "nvl72-a-17": "gb200 4 whole",
        "head-0": "unknown",
    },
    "dra": {
        "dra-h100-1": "h100-80gb-hbm3 by DRA",
        "dra-a100-0": "a100-sxm4-80gb 0 whole by DRA",
        "dra-l4-0": "l4 by DRA",
        "plugin-t4-0": "t4 4 whole",
    },
    "edge": {
        "store-001": "t4 1 whole",
        "store-004": "a2 1 whole",
        "store-005": "l4 1 whole",
        "store-006": "l4 1 whole",
        "vdi-1": "a16 4 whole",
        "plant-lab-1": "a100-sxm4-40gb 1 whole",
        "kiosk-1": "unknown 1 whole or share",
    },
    "eks": {
        "ip-10-0-1-10.ec2.internal": "a10g 1 whole or share",
        "ip-10-0-2-20.ec2.internal": "a100-sxm4-40gb 8 whole",
        "ip-10-0-3-30.ec2.internal": "l4 1 whole or share",
        "ip-10-0-4-40.ec2.internal": "h100-80gb-hbm3 8 whole or share",
        "ip-10-0-5-50.ec2.internal": "t4 4 whole or share",
        "ip-10-0-9-90.ec2.internal": "unknown",
    },
    "gpucluster": {
        "h100-0": "h100-80gb-hbm3 by DRA",
        "l4-1": "l4 by DRA",
        "cpu-0": "unknown",
    },
    "gke": {
        "gke-prod-l4-0": "l4 2 whole",
        "gke-prod-h100-1": "h100-80gb-hbm3 8 whole",
        "gke-prod-v100-0": "unknown 1 whole",
        "gke-prod-a100-mig-0": "a100-sxm4-40gb 7 slices of 1g.5gb",
        "gke-prod-t4-shared-0": "t4 4 time-sliced by 4, 15360 MiB left",
        "gke-prod-l4-mps-0": "l4 2 MPS by 2, 23034 MiB left",
        "gke-prod-a100-0": "a100-sxm4-80gb 4 whole",
        "gke-prod-t4-spot-0": "t4 1 whole",
        "gke-prod-default-0": "unknown",
    },
    "mig": {
        "h100-balanced-1": "h100-80gb-hbm3 0 whole 16 mig-1g.10gb 8 mig-2g.20gb 8 mig-3g.40gb",
        "h100-changing-0": "h100-80gb-hbm3 0 whole 0 mig-1g.10gb 0 mig-2g.20gb 0 mig-3g.40gb layout pending"
        " but 8 promised, 32 withdrawn",
        "a100-40-half-0": "a100-sxm4-40gb 4 whole 28 mig-1g.5gb",
        "a100-80-media-0": "a100-80gb-pcie 0 whole 2 mig-1g.10gb.me 2 mig-3g.40gb",
        "a100-40-single-0": "a100-sxm4-40gb 56 slices of 1g.5gb",
        "a100-40-single-old-0": "a100-sxm4-40gb 56 slices of 1g.5gb",
        "a30-single-0": "a30 8 slices of 2g.12gb",
        "a100-80-single-pending-0": "a100-80gb-pcie 4 whole layout pending",
        "h100-rebooting-0": "h100-80gb-hbm3 8 whole layout rebooting",
    },
    "mixed": {
        "h100-0": "h100-80gb-hbm3 8 whole",
        "h200-0": "h200 8 whole",
        "a100-1": "a100-sxm4-80gb 8 whole",
        "a100-old-0": "a100-sxm4-40gb 8 whole",
        "v100-old-0": "v100-sxm2-32gb 8 whole",
        "t4-1": "t4 4 whole",
        "a10-0": "a10 4 whole",
        "l4-0": "l4 1 whole",
        "l40s-0": "l40s 4 whole",
        "a10-shared-0": "a10 4 time-sliced by 4, 23028 MiB left",
        "t4-mps-0": "t4 2 MPS by 2, 15360 MiB left",
        "a100-mig-single-0": "a100-sxm4-80gb 7 slices of 1g.10gb",
        "h100-mig-success": "h100-80gb-hbm3 0 whole 4 mig-1g.10gb 1 mig-3g.40gb",
        "h100-mig-pending": "h100-80gb-hbm3 0 whole 4 mig-1g.10gb 1 mig-3g.40gb layout pending",
        "h100-mig-failed": "h100-80gb-hbm3 0 whole 4 mig-1g.10gb 1 mig-3g.40gb layout failed",
        "a100-upgrading-0": "a100-sxm4-80gb 8 whole drain-required",
        "h100-ghost-0": "h100-80gb-hbm3 0 whole but 8 promised",
        "cpu-0": "unknown",
    },
    "shared": {
        "a10-sliced-1": "a10 8 time-sliced by 4, 46056 MiB left",
        "l4-renamed-0": "l4 16 shared time-sliced by 8, 46068 MiB left",
        "l4-renamed-lately-0": "l4 8 shared time-sliced by 8, 23034 MiB left",
        "l40s-mps-0": "l40s 16 MPS by 4, 184272 MiB left",
        "l40s-mps-renamed-0": "l40s 16 shared MPS by 4, 184272 MiB left",
        "a100-mig-sliced-0": "a100-sxm4-80gb 28 time-sliced of 1g.10gb by 2, 137984 MiB left",
        "a10-whole-0": "a10 2 whole",
    },
    "sick": {
        "ghost-fresh-0": "h100-80gb-hbm3 0 whole but 8 promised, 8 withdrawn",
        "ghost-old-0": "h100-80gb-hbm3 0 whole but 8 promised",
        "ghost-never-0": "h100-80gb-hbm3 but 8 promised",
        "unhealthy-0": "h100-80gb-hbm3 6 whole, 2 withdrawn",
        "unhealthy-full-0": "h100-80gb-hbm3 7 whole, 1 withdrawn",
        "upgrade-required-0": "a100-sxm4-80gb 8 whole upgrade-required",
        "upgrade-draining-0": "a100-sxm4-80gb 8 whole drain-required",
        "upgrade-restarting-0": "a100-sxm4-80gb 0 whole pod-restart-required but 8 promised, 8 withdrawn",
        "upgrade-failed-0": "a100-sxm4-80gb 8 whole upgrade-failed",
        "upgrade-done-0": "a100-sxm4-80gb 8 whole",
        "mig-invalid-0": "a100-sxm4-80gb invalid",
        "mig-failed-0": "h100-80gb-hbm3 0 whole 2 mig-1g.10gb 1 mig-2g.20gb 1 mig-3g.40gb layout failed",
        "stale-count-0": "a100-sxm4-80gb 4 whole, stale labels",
        "stale-mig-0": "h100-80gb-hbm3 0 whole 7 mig-1g.10gb 0 mig-2g.20gb 0 mig-3g.40gb, stale labels",
        "shared-roomy-0": "a10 4 time-sliced by 4, 8692 MiB left",
        "shared-overrun-0": "a10 4 time-sliced by 4, -5644 MiB left",
        "shared-silent-0": "a10 4 time-sliced by 4, 12788 MiB left",
        "shared-mps-0": "t4 4 MPS by 2, 23552 MiB left",
    },
    "weekday": {
        "h100-2": "h100-80gb-hbm3 8 whole",
        "a100-mig-1": "a100-sxm4-80gb 0 whole 8 mig-3g.40gb",
        "a10-shared-0": "a10 8 time-sliced by 4, 7144 MiB left",
        "l40s-upgrading-0": "l40s 4 whole drain-required",
        "t4-sick-0": "t4 3 whole, 1 withdrawn",
        "cpu-0": "unknown",
    },
}  # fmt: skip


def test_every_fleet_has_its_meaning_written_down() -> None:
    assert set(MEANT) == set(fleet_names())


@pytest.mark.parametrize(
    ("name", "node", "meant"),
    [(name, node, meant) for name, rows in MEANT.items() for node, meant in rows.items()],
    ids=[f"{name} {node}" for name, rows in MEANT.items() for node in rows],
)
def test_node_is_read_as_its_fleet_means_it(name: str, node: str, meant: str) -> None:
    """S1-S4, S9, S15, F65, F67, F70, F73, F135."""
    assert described(state(name).nodes[node]) == meant


def test_labels_of_slices_that_are_gone_are_stale() -> None:
    """F73: GFD still reports 2, 1 and 1 slices, while the device plugin has seven small ones."""
    assert state("sick").nodes["stale-mig-0"].node_class.stale


@pytest.mark.parametrize("node", ["dra-mig-0", "dra-mig-two-0"])
def test_mig_devices_do_not_serve_whole_gpus(node: str) -> None:
    """F135: the DeviceClass that serves nvidia.com/gpu takes devices of type gpu only."""
    assert "nvidia.com/gpu" not in state("dra").nodes[node].node_class.dra_resources
    assert judge(demand(pod(gpus(1))), state("dra").nodes[node], recount=False) is not None
