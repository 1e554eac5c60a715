# SPDX-License-Identifier: Apache-2.0
"""The needs of a pod as text, one line each, with the evidence."""

from app.knowledge.families import Families
from app.kube.pods import Pod, gpu_amounts
from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.needs import LEAST_CUDA, NEEDS


def needs(demand: Demand, pod: Pod, families: Families) -> list[str]:
    """List every need as a line of text, with its evidence where there is one.

    GPUs by resources of others are named too, although only their number is checked (knowledge/families.yaml).
    """
    lines = [f"{amount} x {resource}" for resource, amount in demand.resources]
    lines += [
        f"{amount} x {resource}, each {row.unit}: counted, not placed by gpu-usher"
        for resource, amount in gpu_amounts(pod, families.passthrough_family)
        if (row := families.elsewhere(resource))
    ]
    for need in NEEDS:
        lines += need.show(getattr(demand, need.demand_field))
        if need is LEAST_CUDA:
            lines += [f"preferred: {show_need(preference)}" for preference in demand.preferred_cuda]
    if demand.declared_mib:
        lines.append(f"declares {demand.declared_mib} MiB of each shared GPU")
    return lines
