# SPDX-License-Identifier: Apache-2.0
"""The needs of a pod as text, one line each, with the evidence."""

from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.policy.needs import LEAST_CUDA, NEEDS


def needs(demand: Demand) -> list[str]:
    """List every need as a line of text, with its evidence where there is one."""
    lines = [f"{amount} x {resource}" for resource, amount in demand.resources]
    for need in NEEDS:
        lines += need.show(getattr(demand, need.demand_field))
        if need is LEAST_CUDA:
            lines += [f"preferred: {show_need(preference)}" for preference in demand.preferred_cuda]
    if demand.declared_mib:
        lines.append(f"declares {demand.declared_mib} MiB of each shared GPU")
    return lines
