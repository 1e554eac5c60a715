# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.knowledge.image_verdicts`: which published images run on which GPUs, by the filters.

The verdicts are those of the engine on a node of each GPU. Where image_code.yaml has a row, the page names its source;
else only the toolkit of the image, by image_cuda.yaml, is compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from app.nodes.model import Node
from app.placement.class_filters import lacks_code
from app.placement.engine import judge
from app.placement.scorers import image_for_other_machine
from tests.builders import demand, knowledge, node
from tests.docstrings import ROOT
from tests.knowledge.test_image_platforms import pod_of

PAGE = ROOT / "tests" / "results" / "image-code.md"
R470, R580, R610 = "470.256.02", "580.95.05", "610.43.02"


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU in its usual machine, with the newest driver branch of the tables that still supports it."""

    name: str
    product: str
    capability: str
    architecture: str = "amd64"
    driver: str = R610

    @property
    def node(self) -> Node:
        """A node of it."""
        major, minor = self.capability.split(".")
        capability = {"nvidia.com/gpu.compute.major": major, "nvidia.com/gpu.compute.minor": minor}
        labels = {"kubernetes.io/arch": self.architecture, **capability}
        return node(product=self.product, driver=self.driver, labels=labels)


GPUS = (
    GPU("K80", "Tesla-K80", "3.7", driver=R470),
    GPU("P100", "Tesla-P100-PCIE-16GB", "6.0", driver=R580),
    GPU("V100", "Tesla-V100-SXM2-16GB", "7.0", driver=R580),
    GPU("T4", "Tesla-T4", "7.5"),
    GPU("A100", "NVIDIA-A100-SXM4-80GB", "8.0"),
    GPU("A10", "NVIDIA-A10", "8.6"),
    GPU("L40S", "NVIDIA-L40S", "8.9"),
    GPU("H100", "NVIDIA-H100-80GB-HBM3", "9.0"),
    GPU("H200", "NVIDIA-H200", "9.0"),
    GPU("GH200", "NVIDIA-GH200-480GB", "9.0", "arm64"),
    GPU("B200", "NVIDIA-B200", "10.0"),
    GPU("GB200", "NVIDIA-GB200", "10.0", "arm64"),
    GPU("B300", "NVIDIA-B300-SXM6-AC", "10.3"),
    GPU("GB10", "NVIDIA-GB10", "12.1", "arm64"),
    GPU("Thor", "NVIDIA-Thor", "11.0", "arm64"),
    GPU("RTX PRO 6000", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "12.0"),
)
IMAGES = (
    *(
        f"pytorch/pytorch:{tag}-runtime"
        for tag in (
            "1.12.1-cuda11.3-cudnn8", "2.0.1-cuda11.7-cudnn8", "2.1.0-cuda12.1-cudnn8", "2.3.0-cuda12.1-cudnn8",
            "2.4.1-cuda12.4-cudnn9", "2.5.1-cuda11.8-cudnn9", "2.6.0-cuda12.6-cudnn9", "2.7.0-cuda11.8-cudnn9",
            "2.7.0-cuda12.6-cudnn9", "2.7.0-cuda12.8-cudnn9", "2.8.0-cuda12.6-cudnn9", "2.8.0-cuda12.8-cudnn9",
            "2.8.0-cuda12.9-cudnn9", "2.9.1-cuda13.0-cudnn9", "2.11.0-cuda12.8-cudnn9", "2.13.0-cuda13.0-cudnn9",
        )
    ),
    *(
        f"vllm/vllm-openai:{tag}"
        for tag in (
            "v0.6.6", "v0.8.5", "v0.9.0", "v0.10.0", "v0.11.0", "v0.17.0", "v0.17.0-cu130", "v0.20.0", "v0.20.0-cu129",
        )
    ),
    *(f"ghcr.io/huggingface/text-generation-inference:{tag}" for tag in ("2.2.0", "3.3.6")),
    "registry.example/mirror/pytorch/pytorch:2.7.0-cuda12.6-cudnn9-runtime",
    "ollama/ollama:0.11.11",
    *(f"rapidsai/base:{tag}" for tag in ("23.12-cuda12.0-py3.10", "24.10-cuda12.5-py3.11", "25.12-cuda13-py3.13")),
    *(f"ghcr.io/ggml-org/llama.cpp:server-cuda{cuda}" for cuda in ("12", "13")),
    *(f"tensorflow/tensorflow:{tag}-gpu" for tag in ("2.11.0", "2.16.1")),
    "nvcr.io/nvidia/tensorrt-llm/release:1.0.0",
    *(f"lmsysorg/sglang:v0.5.5-{cu}" for cu in ("cu129", "cu130")),
    *(f"nvcr.io/nvidia/pytorch:{month}-py3" for month in ("24.05", "25.03", "25.10")),
    "nvcr.io/nvidia/tritonserver:25.03-py3",
    "nvidia/cuda:12.4.1-runtime-ubuntu22.04",
)  # fmt: skip
WORDS = {
    "ImageWithoutCodeForGPU": "no code",
    "ImageForOtherMachine": "other CPU",
    "ComputeCapabilityUnsupported": "no toolkit",
    "ComputeCapabilityTooLow": "too old",
    "DriverTooOld": "driver",
    "ImageRequirementUnmet": "driver",
}


def verdict(image: str, gpu: GPU) -> str:
    """Say `fits`, `told` (a warning and a lower score), or why the filters refuse."""
    wanted, machine = demand(pod_of(image)), gpu.node
    refusal = judge(wanted, machine, recount=True)
    if refusal is not None:
        return WORDS[refusal.code.name]
    told = lacks_code(wanted, machine.node_class) or image_for_other_machine(wanted, machine.node_class)
    return "told" if told else "fits"


def _rows() -> Iterator[str]:
    for image in IMAGES:
        build = knowledge().image_code.build(image)
        source = build.evidence if build else "the toolkit alone"
        yield f"| {image} | {' | '.join(verdict(image, gpu) for gpu in GPUS)} | {source} |"


def page() -> str:
    """Write the page."""
    columns = [f"{gpu.name} {gpu.capability}{' arm64' * (gpu.architecture == 'arm64')}" for gpu in GPUS]
    return "\n".join(
        [
            f"""\
# Images on GPUs

`python -m tests.knowledge.image_verdicts` wrote this: {len(IMAGES)} published images on {len(GPUS)} GPUs, each with
the newest driver that supports it.

*no code*: the publisher's build has neither machine code nor PTX for the GPU. *other CPU*: it has no image for the CPU
architecture. *no toolkit*: the CUDA of the image no longer supports the GPU. *too old*, *driver*: by the image's own
limits. *told*: not known to have code, warned of and scored lower, never refused. Sources are of
`app/knowledge/image_code.yaml`.
""",
            f"| image | {' | '.join(columns)} | source |",
            "|---" * (len(columns) + 2) + "|",
            *_rows(),
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
