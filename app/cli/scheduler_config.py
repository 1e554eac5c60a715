# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher scheduler-config`: writes the KubeSchedulerConfiguration, or checks one for what is dangerous."""

import sys
from pathlib import Path
from typing import get_args

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Column

from app.cli.options import Fleet, refuse_several
from app.cli.output import show, table_of
from app.cli.source import read, state_of
from app.cluster.snapshot_policies import holds_policies, policies_of
from app.policy.compiled import PolicySet
from app.schedulerconfig.verify import ConfigurationFinding, batching_line, verify
from app.schedulerconfig.write import (
    URLS,
    ConfigurationPlan,
    Target,
    managed_resources,
    offers_claims,
    packed_resources,
    read_ca,
    read_extender_url,
    write,
)
from app.settings import filter_answer_of
from app.telemetry.logs import today
from app.values.errors import BadInput
from app.world.state import State

CLAIMABLE = ("ResourceSlice", "DeviceClass")
"""The kinds that say which GPUs can be claimed; a cluster may not have them, or forbid them to the user."""
PIPE_COLUMNS = 240
"""Width without a terminal: a finding stays on one line, so that grep and CI find file:line whole. A guess."""


def scheduler_config(
    *,
    target: str,
    filter_answer: str,
    every_pod: bool,
    extender: bool,
    url: str | None,
    ca: Path | None,
    ca_file: Path | None,
    fleet: Fleet,
    check: Path | None,
    output: str,
) -> None:
    if target not in get_args(Target):
        raise BadInput(f"scheduler-config: got --for {target}, wants second or default")
    answer = filter_answer_of(filter_answer)
    refuse_several(("--verify", check), ("--ca", ca), ("--ca-file", ca_file), ("--no-extender", not extender))
    refuse_several(("--no-extender", not extender), ("--every-pod", every_pod))
    # Without a fleet the configuration is for every known family.
    policies = ("ConfigMap", "GPUPolicy") if check is not None else ()
    objects = read(fleet, ("Node",), (*CLAIMABLE, *policies)) if fleet.given else []
    state = state_of(objects)
    if check is not None:
        stored = any(map(holds_policies, objects))
        named = scheduler_names(policies_of(objects, None, state.knowledge, today())) if stored else frozenset()
        _check(check, state, output, named)
    chosen: Target = "second" if target == "second" else "default"
    resources_of = managed_resources if extender else packed_resources
    resources = resources_of(state.nodes.values(), state.knowledge)
    place = read_extender_url(url or URLS[chosen])
    unencrypted = place.startswith("http://") or not extender
    own = _read_ca(ca or Path("certs/ca.crt")) if ca or not (ca_file or unencrypted) else b""
    trusted = str(ca_file) if ca_file else b"" if unencrypted else own
    claims = offers_claims(state.nodes.values())
    plan = ConfigurationPlan(chosen, place, trusted, resources, len(state.nodes), answer, every_pod, claims, extender)
    text = write(plan)
    show(yaml.safe_load(text), output, lambda _: print(text, end=""))


def _read_ca(path: Path) -> bytes:
    """Read the CA; without one kube-scheduler would verify nothing.

    Raises BadInput.
    """
    try:
        return read_ca(str(path), path.read_bytes())
    except OSError as error:
        raise BadInput(f"--ca {path}: {error.strerror}: wants the CA of our certificate, in PEM") from error


def _check(path: Path, state: State, output: str, named: frozenset[str]) -> None:
    text = read_configuration("--verify", path)
    findings = tuple(configuration_findings(str(path), text, state, named))
    compared = any(node.node_class.offered for node in state.nodes.values())
    show(findings, output, lambda _: _show(path, findings, compared, batching_line(text)))
    raise typer.Exit(1 if findings else 0)


def read_configuration(option: str, path: Path) -> str:
    """Read the file that an option names.

    Raises BadInput.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{option} {path}: {error}: wants a KubeSchedulerConfiguration") from error


def scheduler_names(policies: PolicySet) -> frozenset[str]:
    """List the schedulers that policies have pods name."""
    return frozenset(name for policy in policies.policies if (name := policy.spec.admission.scheduler_name))


def configuration_findings(
    file: str, text: str, state: State, named: frozenset[str] = frozenset()
) -> list[ConfigurationFinding]:
    """Compare a configuration with what the nodes offer, and with the schedulers that policies name.

    Raises PolicyError.
    """
    nodes = state.nodes.values()
    offered = sorted({name for node in nodes for name, _ in node.node_class.offered})
    rows = state.knowledge.scheduler_findings
    return verify(rows, file, text, tuple(offered), len(nodes), offers_claims(nodes), named)


def _show(path: Path, findings: tuple[ConfigurationFinding, ...], compared: bool, batching: str) -> None:
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    if not compared:
        console.print("managedResources not compared with a fleet: give --kubeconfig, --snapshot or --demo")
    if batching:
        console.print(batching, markup=False)
    if not findings:
        console.print(f"{path}: nothing dangerous found", markup=False)
        return
    heads = ("severity", "where", "found", "write instead")
    columns = [Column(head, overflow="fold", no_wrap=head == "where") for head in heads]
    rows = []
    for finding in findings:
        colour = "red" if finding.severity == "danger" else "yellow"
        cells = map(escape, (finding.where, finding.message, finding.remedy))
        rows.append((f"[{colour}]{finding.severity}[/]", *cells))
    console.print(table_of(columns, rows, ruled=False, header_style="bold"))
