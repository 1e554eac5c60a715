# SPDX-License-Identifier: Apache-2.0
"""Answers in the layouts of dcgm-exporter's releases, from the exposition to the health of nodes.

The layouts are written down from its templates and its test of them (NVIDIA/dcgm-exporter internal/pkg/rendermetrics,
and pkg/dcgmexporter/pipeline.go up to 3.3.9). The program itself needs NVIDIA's DCGM library and a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from app.cluster.exporters import read_exposition
from app.nodes.gpu_health import Health, MetricSample
from tests.builders import knowledge
from tests.nodes.polls import health_after

NODE, UUID = "gpu-node-1", "GPU-a7ae03c4-be30-58f8-8b38-b556aa0f882f"
XID, REMAP, TEMPERATURE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_GPU_TEMP"
"""The two metrics of dcgm.yaml that etc/default-counters.csv has switched on, and one that nothing reads."""
NVLINK = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"


@dataclass(frozen=True, slots=True)
class Layout:
    """What differs between releases: the labels' names of GPU and host, and whether the PCI address is there."""

    uuid: str = "UUID"
    host: str = "Hostname"
    bus: bool = True
    pod: Mapping[str, str] | None = None

    def line(self, metric: str, value: str, slice_id: str = "", more: str = "") -> str:
        """Write the line of a GPU, or of a MIG slice of it."""
        bus = 'pci_bus_id="00000000:0F:00.0",' if self.bus else ""
        part = f',GPU_I_PROFILE="1g.10gb",GPU_I_ID="{slice_id}"' if slice_id else ""
        pod = "".join(f',{key}="{word}"' for key, word in (self.pod or {}).items())
        return (
            f'{metric}{{gpu="3",{self.uuid}="{UUID}",{bus}device="nvidia3",modelName="NVIDIA H100 80GB HBM3"{part}'
            f',{self.host}="{NODE}",DCGM_FI_DRIVER_VERSION="580.95.05"{more}{pod}}} {value}'
        )

    def link_line(self, link: int, value: str) -> str:
        """Write the line of an NVLink, in which the GPU's label is always gpu_uuid."""
        return (
            f'{NVLINK}{{nvlink="{link}",gpu="3",gpu_uuid="{UUID}",pci_bus_id="00000000:0F:00.0",device="nvidia3"'
            f',model_name="NVIDIA H100 80GB HBM3",{self.host}="{NODE}"}} {value}'
        )


POD = {"container": "main", "namespace": "team-a", "pod": "train", "pod_uid": "u-1"}
OLD_POD = {"container_name": "main", "pod_name": "train", "pod_namespace": "team-a"}
LAYOUTS = {
    "3.3.6": Layout(bus=False, pod=POD),
    "4.5.3": Layout(pod=POD),
    "pull 655": Layout(host="hostname", pod=POD),
    "--use-old-namespace": Layout(uuid="uuid", pod=OLD_POD),
}


def read(*lines: str) -> list[MetricSample]:
    """Read an answer that has these lines, each metric with its HELP and TYPE before it."""
    families: dict[str, list[str]] = {}
    for line in lines:
        families.setdefault(line.partition("{")[0], []).append(line)
    text = "".join(
        f"# HELP {name} Of the field.\n# TYPE {name} gauge\n" + "".join(f"{line}\n" for line in family)
        for name, family in families.items()
    )
    result = read_exposition(text.encode(), knowledge().dcgm)
    assert result.problem is None
    return result.samples


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_node_and_gpu_are_read_in_the_layout_of_each_release(layout: Layout) -> None:
    """F72: one label names the node, one identifies the GPU; those of the pod on it decide nothing."""
    samples = read(layout.line(TEMPERATURE, "42"), layout.line(XID, "79"), layout.line(REMAP, "0"))

    assert samples == [MetricSample(XID, NODE, UUID, "", 79.0), MetricSample(REMAP, NODE, UUID, "", 0.0)]
    assert health_after((0.0, samples))[NODE].ill == 1


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_gpu_and_its_nvlinks_are_one_gpu_in_the_layout_of_each_release(layout: Layout) -> None:
    """F72: a GPU that is ill, and whose link has errors too, is not counted a second time as ailing."""
    before = read(layout.line(XID, "79"), layout.link_line(0, "0"), layout.link_line(1, "7"))
    after = read(layout.line(XID, "79"), layout.link_line(0, "1"), layout.link_line(1, "7"))

    (node_health,) = health_after((0.0, before), (30.0, after)).values()

    assert (node_health.ill, node_health.ailing) == (1, 0)
    assert {sample.part for sample in before} == {"", "0", "1"}


def test_slices_of_a_gpu_and_the_words_of_an_xid_are_read() -> None:
    """F72: every MIG slice has a line of its own; since 3.3.6 a line with an XID has its meaning as labels."""
    layout = LAYOUTS["4.5.3"]
    xid = layout.line(XID, "31", more=',err_code="31",err_msg="GPU memory page fault"')

    samples = read(xid, layout.line(REMAP, "0", "1"), layout.line(REMAP, "0", "2"))

    assert [sample.part for sample in samples] == ["", "1", "2"]
    assert health_after((0.0, samples)) == {NODE: Health()}
