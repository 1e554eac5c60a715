# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher image`: shows what an image carries and where it runs; `--registry` of other verbs reads images too.

A user names the image, so any registry is read, with the credentials that docker or podman has for it.
"""

import asyncio
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column

from app.cli.output import Output, show, table_of
from app.cli.source import Fleet, note, state_of
from app.images.documents import DOCKER_HUB, DockerConfig, credentials_of, read_reference
from app.images.registry import Registries, RegistryAccess
from app.knowledge.image_configs import ImageFacts
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.nodes.model import NodeClass
from app.placement.class_filters import (
    compute_capability_high_enough,
    driver_new_enough,
    image_for_machine,
    toolkit_targets_gpu,
)
from app.policy.demand import Demand
from app.policy.needs import container_needs, image_platforms
from app.values.errors import BadInput, RegistryError
from app.values.versions import show_driver
from app.world.image_index import ImageIndex
from app.world.state import State

Registry = Annotated[
    bool,
    typer.Option("--registry", help="Read the images from their registries, with the credentials of docker or podman."),
]
IMAGE_FILTERS = (image_for_machine, driver_new_enough, compute_capability_high_enough, toolkit_targets_gpu)
"""The filters that depend on the image of a pod."""
HELPER_SECONDS = 20
"""For a credential helper, which may ask the user's keychain."""


@dataclass(frozen=True, slots=True)
class ImageOnNodes:
    """Nodes of one kind, and why the image does not run on them; `refusal` is empty where it does."""

    product: str
    driver: str
    architecture: str
    nodes: int
    refusal: str


@dataclass(frozen=True, slots=True)
class ImageReport:
    """What an image carries: its digest, the variables that are read of each architecture, and the nodes it runs on."""

    image: str
    digest: str
    environments: Mapping[str, Mapping[str, str | None]]
    nodes: tuple[ImageOnNodes, ...]


def image(
    reference: Annotated[str, typer.Argument(help="Such as nvcr.io/nvidia/pytorch:25.06-py3.")],
    *,
    fleet: Fleet,
    output: Output = "text",
) -> None:
    """Show what an image carries about CUDA, read from its registry, and on which GPU nodes of the fleet it runs.

    Credentials are those of docker or podman. Policies and the other needs of a pod are not looked at: explain does.
    """
    state = state_of(fleet.read())
    facts = asyncio.run(_read_all([reference]))[reference]
    if isinstance(facts, RegistryError):
        raise BadInput(f"{reference}: {facts}")
    environments = {name: dict(variables) for name, variables in facts.environments}
    report = ImageReport(reference, facts.digest, environments, tuple(_on_nodes(reference, facts, state)))
    show(report, output, lambda console: _show(console, report))


def _on_nodes(reference: str, facts: ImageFacts, state: State) -> Iterator[ImageOnNodes]:
    demand, kinds = _demand(reference, facts, state.knowledge), dict[tuple[str, str, str, str], int]()
    for node in state.nodes.values():
        if node.has_gpus:
            key = _row(demand, node.node_class)
            kinds[key] = kinds.get(key, 0) + 1
    for (product, driver, architecture, refusal), count in sorted(kinds.items()):
        yield ImageOnNodes(product, driver, architecture, count, refusal)


def _demand(reference: str, facts: ImageFacts, knowledge: Knowledge) -> Demand:
    index = ImageIndex()
    index.put(reference, facts)
    pod = read_pod({"metadata": {"name": "image"}, "spec": {"containers": [{"name": "image", "image": reference}]}})
    containers = index.with_facts(pod).containers
    needs = tuple(need for need, required in container_needs(containers, (), True, knowledge) if required)
    return Demand(cuda=needs, platforms=tuple(image_platforms(containers, knowledge)))


def _row(demand: Demand, node: NodeClass) -> tuple[str, str, str, str]:
    found = next((reason for judge in IMAGE_FILTERS if (reason := judge(demand, node))), None)
    driver = show_driver(node.driver) if node.driver else "unknown"
    return node.product or "unknown", driver, node.architecture or "unknown", found.message if found else ""


def _show(console: Console, report: ImageReport) -> None:
    console.print(escape(f"{report.image} is {report.digest}"))
    for architecture, variables in report.environments.items():
        console.print(f"[bold]{escape(architecture)}[/]" + ("" if variables else " says nothing about CUDA"))
        for name, value in variables.items():
            console.print(escape(f"  {name}={value}"), soft_wrap=True)
    rows = ((row.product, row.driver, row.architecture, str(row.nodes), row.refusal or "yes") for row in report.nodes)
    columns = map(Column, ("product", "driver", "architecture", "nodes", "runs"))
    console.print(table_of(columns, (map(escape, row) for row in rows)))


def read_images(state: State, pods: Iterable[Mapping[str, Any]]) -> None:
    """Read the images of pods, and name on stderr those that cannot be read."""
    containers = (one for pod in pods for one in read_pod(pod).containers)
    for name, facts in asyncio.run(_read_all(dict.fromkeys(one.image for one in containers if one.image))).items():
        if isinstance(facts, RegistryError):
            note(f"{name} is judged by its name: {facts}")
        else:
            state.images.put(name, facts)


async def _read_all(images: Iterable[str]) -> dict[str, ImageFacts | RegistryError]:
    found: dict[str, ImageFacts | RegistryError] = {}
    for name in images:
        try:
            registry = read_reference(name).registry
        except BadInput as error:
            found[name] = RegistryError("not_allowed", str(error))
            continue
        registries = Registries(RegistryAccess(None, None, None, "", _credentials(registry)))
        try:
            facts = await registries.read(name)
            found[name] = facts if facts is not None else RegistryError("malformed", "no manifest")
        except RegistryError as error:
            found[name] = error
        finally:
            await registries.close()
    return found


def _credentials(registry: str) -> Mapping[str, tuple[str, str]]:
    """Read what docker and podman know, and ask their helper for this registry."""
    home, known = Path.home(), dict[str, tuple[str, str]]()
    files = (
        Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
        Path(os.environ.get("XDG_RUNTIME_DIR") or home) / "containers/auth.json",
        home / ".config/containers/auth.json",
        Path(os.environ.get("REGISTRY_AUTH_FILE") or os.devnull),
    )
    for path in files:
        if not path.is_file():
            continue
        try:
            config = msgspec.json.decode(path.read_bytes(), type=DockerConfig)
        except (OSError, msgspec.DecodeError) as error:
            note(f"{path} is left out: {error}")
            continue
        known |= credentials_of(config)
        if (helper := config.credHelpers.get(registry) or config.credsStore) and registry not in known:
            known |= _from_helper(helper, registry)
    return known


def _from_helper(helper: str, registry: str) -> Mapping[str, tuple[str, str]]:
    asked = f"https://index.{DOCKER_HUB}/v1/" if registry == DOCKER_HUB else registry
    try:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", helper):
            return {}
        command = [f"docker-credential-{helper}", "get"]
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=HELPER_SECONDS, check=False)
        answer = msgspec.json.decode(done.stdout) if done.returncode == 0 else {}
        return {registry: (answer["Username"], answer["Secret"])}
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError, KeyError, TypeError):
        return {}
