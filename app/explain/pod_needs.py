# SPDX-License-Identifier: Apache-2.0
"""The needs of a pod as text, one line each, with the evidence."""

from app.policy.cuda_needs import show_need
from app.policy.demand import Demand
from app.values.reasons import join_with_or


def needs(demand: Demand) -> list[str]:
    """List every need as a line of text, with its evidence where there is one."""
    lines = [f"{amount} x {resource}" for resource, amount in demand.resources]
    lines += ["products " + ", ".join(pattern.text for pattern in any_of) for any_of in demand.products]
    lines += [f"not product {pattern.text}" for pattern in demand.denied_products]
    lines += [show_need(need) for need in demand.cuda]
    lines += [f"preferred: {show_need(need)}" for need in demand.preferred_cuda]
    if demand.memory_mib:
        lines.append(f"memory per GPU >= {demand.memory_mib} MiB")
    if demand.compute_capability:
        lines.append(f"compute capability >= {'.'.join(map(str, demand.compute_capability))}")
    if demand.sharing.value != "Any":
        lines.append(f"sharing {demand.sharing.value}")
    if demand.mig_profile:
        lines.append(f"MIG profile {'>= ' if demand.mig_profile[1] else ''}{demand.mig_profile[0]}")
    if demand.nvlink:
        lines.append("NVLink")
    if demand.form_factors is not None:
        lines.append("form factor " + join_with_or(sorted(form_factor.value for form_factor in demand.form_factors)))
    lines += [f"node label {label.key}" for label in demand.node_selector]
    if demand.declared_mib:
        lines.append(f"declares {demand.declared_mib} MiB of each shared GPU")
    return lines
