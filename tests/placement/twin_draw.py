# SPDX-License-Identifier: Apache-2.0
"""Random bound pods, policies and wishes for the twin. Every reason occurs, and most pairs nearly fit."""

import random
from dataclasses import replace

from tests.placement.twin_draw_nodes import ZONES, maybe, node, some
from tests.placement.twin_world import GPU, Part, Policy, RawNode, RawPod, Wish

__all__ = ["ZONES", "node", "pods", "policy", "wish"]

WORDS = [
    "H100",
    "A10",
    "A100",
    "L4",
    "L40",
    "L40S",
    "T4",
    "H20",
    "H200",
    "NVIDIA-H100",
    "NVIDIA-A100-SXM4-80GB",
    "SXM4",
    "A100-80GB",
    "V100",
]
GLOBS = ["NVIDIA-A100-*", "*-SXM4-*", "NVIDIA-H100-*", "NVIDIA-XYZ-9000", "Tesla-T4", "h100"]
MONTHS = ("22.05", "23.01", "23.03", "23.10", "24.03", "24.05", "25.03", "25.08", "26.04", "26.06")
CUDA_TAGS = (
    "10.2", "11.0.3", "11.4.3", "11.6.2", "11.7.1", "11.8.0", "12.1.0", "12.2.2",
    "12.4.1", "12.5.0", "12.6.3", "12.8.0", "12.9.1", "13.0.0",
)  # fmt: skip
NEWEST = [f"nvidia/cuda:13.0.0-{kind}-ubuntu24.04" for kind in ("base", "runtime", "devel", "cudnn-devel")]
"""Images whose toolkit has dropped the oldest GPUs of the draw."""
IMAGES = [
    *(f"nvcr.io/nvidia/pytorch:{month}-py3" for month in MONTHS),
    *(f"nvidia/cuda:{cuda}-base-ubuntu22.04" for cuda in CUDA_TAGS),
    *NEWEST,
    *(f"nvcr.io/nvidia/tritonserver:{tag}" for tag in ("24.05-py3", "25.03-trtllm-python-py3", "23.12-py3")),
    "docker.io/nvidia/cuda:12.6.2-cudnn-runtime-ubuntu22.04",
    "nvcr.io/nvidia/jax:24.10-py3",
    "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime",
    "pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime",
    "ghcr.io/huggingface/text-generation-inference:3.1.1",
    "ghcr.io/huggingface/text-generation-inference:2.0.1",
    "rapidsai/base:25.12-cuda13-py3.13",
    "rapidsai/base:24.10-cuda12.5-py3.11",
    "rayproject/ray:2.46.0-py311-cu121-aarch64",
    "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-devel",
    "vllm/vllm-openai:v0.20.0-aarch64",
    "vllm/vllm-openai:v0.11.0-x86_64",
    "example.com/train:1.0-cuda12.8.1",
]
REQUIREMENTS = (
    "cuda>=9.0",
    "cuda>=12.2",
    "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=geforce,driver>=535,driver<536",
    "cuda>=12.8 driver>=535,driver<536",
    "driver>=550",
    "arch>=8.0",
    "cuda>=13.0 brand=tesla,driver>=535,driver<536 brand=tesla,driver>=550,driver<551",
)


def pods(draw: random.Random, where: RawNode) -> tuple[RawPod, ...]:
    """Draw the pods bound to a node, which hold none, some or all of its units."""
    bound = []
    for resource, offered in where.allocatable.items():
        left = offered if draw.random() < 0.15 else draw.randint(0, offered) if draw.random() < 0.7 else 0
        while left > 0:
            units = draw.randint(1, min(4, left))
            memory = maybe(draw, 0.8, ["8Gi", "20Gi", "40Gi", "40Gi", "4915Mi", "lots"])
            bound.append(RawPod(((resource, units),), memory, draw.random() < 0.1))
            left -= units
    return tuple(bound)


def wish(draw: random.Random) -> Wish:
    """Draw what a pod asks for; one in 25 asks for nothing but a GPU for an image of the newest toolkit."""
    if draw.random() < 0.04:
        return Wish(resource=GPU, image=draw.choice(NEWEST))
    words = [
        ("!" if draw.random() < 0.2 else "") + draw.choice([*WORDS * 3, *GLOBS]) for _ in range(draw.randint(1, 3))
    ]
    slices = [
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1g.10gb.shared",
        "nvidia.com/mig-3g.40gb",
    ]
    made = Wish(
        resource=draw.choice([GPU] * 12 + [f"{GPU}.shared"] * 2 + slices + ["amd.com/gpu", "gpu.intel.com/i915"]),
        amount=draw.choice([1, 1, 1, 1, 2, 2, 4, 8, 9]),
        products=", ".join(words) if draw.random() < 0.15 else None,
        cuda=maybe(draw, 0.1, ["11.8", "12.0", "12.2", "12.4", "12.7", "12.9", "13.0", "13.3"]),
        image=maybe(draw, 0.4, IMAGES),
        capability=maybe(draw, 0.1, ["7.5", "8.0", "8.6", "9.0", "10.0"]),
        memory=maybe(
            draw,
            0.35,
            ["2Gi", "4Gi", "4Gi", "8GB", "9000Mi", "10Gi", "11000Mi", "16Gi", "24Gi", "40GB", "80Gi", "141Gi"],
        ),
        sharing=draw.choice(["Any"] * 5 + ["Exclusive", "Shared"]),
        mig_profile=maybe(
            draw, 0.08, ["1g.10gb", "1g.10gb.me", ">=1g.5gb", ">=1g.10gb", ">=1g.10gb.me", ">=3g.40gb", "2g.20gb"]
        ),
        nvlink=draw.random() < 0.05,
        accept=draw.choice(["Native", "MinorVersion", "MinorVersion", "ForwardCompatible"]),
        policies=tuple(policy(draw) for _ in range(draw.choice([0, 0, 1, 1, 2]))),
    )
    if draw.random() < 0.25:
        made = replace(made, parts=parts(draw, made))
    if draw.random() < 0.12:
        claiming = tuple(
            Part(amount=0, image=part.image, claims=True) for part in made.containers if part.kind == "app"
        )
        return replace(made, parts=claiming, mig_profile=None)
    if draw.random() < 0.12:
        (first, *others) = made.containers
        main = replace(first, require=maybe(draw, 0.8, REQUIREMENTS), lifted=draw.random() < 0.2)
        made = replace(made, parts=(main, *others))
    return broken(draw, made) if draw.random() < 0.03 else made


def parts(draw: random.Random, of: Wish) -> tuple[Part, ...]:
    """Draw several containers, mostly of one resource. Init containers and sidecars start in the order in which they
    are drawn."""
    drawn = [Part(of.resource, of.amount, of.image)]
    for _ in range(draw.randint(1, 3)):
        resource = draw.choice([of.resource] * 5 + [GPU, f"{GPU}.shared"])
        kind = draw.choice(["app", "init", "init", "sidecar"])
        drawn.append(Part(resource, draw.choice([0, 1, 1, 1, 2, 4]), maybe(draw, 0.2, IMAGES), kind))
    return tuple(drawn)


BROKEN = {
    "cuda": ("cuda", ["twelve", ">12", "12.x"]),
    "compute-capability": ("capability", ["x.y", "<8.0"]),
    "gpu-memory": ("memory", ["lots", "-4Gi"]),
    "sharing": ("sharing", ["Sometimes"]),
    "interconnect": ("nvlink", ["Ethernet"]),
    "mig-profile": ("mig_profile", ["big", ">1g.10gb"]),
    "products": ("products", ["A10*", "H100, L4*"]),
}


def broken(draw: random.Random, of: Wish) -> Wish:
    """Draw an invalid value for one annotation."""
    key = draw.choice(list(BROKEN))
    name, texts = BROKEN[key]
    plain = {"sharing": "Any", "nvlink": False}.get(name)
    return replace(of, broken=((key, draw.choice(texts)),), **{name: plain})  # type: ignore[arg-type]


def policy(draw: random.Random) -> Policy:
    """Draw a policy of one to three fields."""
    full = Policy(
        allow=some(draw, 1, ["H100", "A100", "L4", "T4", "H200", "A10", *GLOBS[:2]]),
        deny=some(draw, 1, ["T4", "V100", "NVIDIA-L4", "*-SXM4-*"]),
        memory=draw.choice(["10Gi", "16Gi", "24Gi"]),
        capability=draw.choice(["7.5", "8.0", "9.0"]),
        cuda=draw.choice(["11.8", "12.2", "12.8"]),
        sharing=draw.choice(["Any", "Exclusive", "Shared"]),
        nvlink=True,
        unknown=draw.choice(["Refuse", "Refuse", "Accept"]),
        labels=(("zone", draw.choice(ZONES)),),
        expressions=tuple(expression(draw) for _ in range(draw.randint(1, 2))),
        forms=tuple(sorted({*some(draw, 1, ["SXM", "PCIe", "PCIe", "superchip", "SoC"])})),
        ill=draw.choice(["Refuse", "ScoreDown", "Ignore"]),
        ailing=draw.choice(["Refuse", "ScoreDown", "Ignore"]),
        unhealthy=draw.choice(["Refuse", "ScoreDown", "Ignore"]),
    )
    names = ["allow", "deny", "memory", "capability", "cuda", "sharing", "nvlink", "labels", "expressions", "forms"]
    names = draw.sample([*names, *["unknown", "ill", "ailing", "unhealthy"] * 2], draw.choice([1, 1, 2, 3]))
    action = draw.choice(["Enforce"] * 8 + ["Warn"])
    own = random.Random(repr(full))
    conditions = own.choice(["Refuse", "Refuse", "ScoreDown", "Ignore"]) if own.random() < 0.2 else None
    return replace(Policy(action=action, conditions=conditions), **{name: getattr(full, name) for name in names})


def expression(draw: random.Random) -> tuple[str, str, tuple[str, ...]]:
    """Draw one requirement of a node selector."""
    operator = draw.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    key, values = draw.choice([("zone", ZONES), ("tier", ["gold", "silver"]), ("nvidia.com/mig.strategy", ["single"])])
    return key, operator, tuple(draw.sample(values, 1)) if operator.endswith("In") else ()
