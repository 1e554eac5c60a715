# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher image`: shows what an image carries and where it runs; `--registry` of other verbs reads images too.

A user names the image, so any registry is read, with the credentials in the files of docker and podman.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from app.cli.explain_text import print_explanation
from app.cli.options import GovernedFleet
from app.cli.output import show
from app.cli.source import note, read_governed
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.knowledge.image_configs import ImageFacts
from app.kube.pods import read_pod
from app.values.computations import finish
from app.values.errors import BadInput, SourceError
from app.world.state import State
from app.world.world import world_of


@dataclass(frozen=True, slots=True)
class ImageReport:
    """What an image carries, and where a pod of it with one GPU fits.

    `architectures` are the CPU architectures of GPU machines that it runs on, `variables` those that are read.
    """

    image: str
    digest: str
    architectures: tuple[str, ...]
    variables: Mapping[str, str]
    explanation: Explanation


def image(*, reference: str, fleet: GovernedFleet, output: str) -> None:
    _, state, policies = read_governed(fleet)
    container = {"name": "image", "image": reference, "resources": {"limits": {state.knowledge.families.mig_gpu: 1}}}
    facts = asyncio.run(_read([reference]))[reference]
    if isinstance(facts, SourceError):
        raise BadInput(f"{reference}: {facts}")
    state.images.put(reference, facts)
    pod = {"metadata": {"name": "image", "namespace": "default"}, "spec": {"containers": [container]}}
    explanation = finish(explain(pod, world_of(state, policies)))
    report = ImageReport(reference, facts.digest, facts.architectures, facts.variables, explanation)
    show(report, output, lambda console: _show(console, report))


def _show(console: Console, report: ImageReport) -> None:
    console.print(escape(f"{report.image} is {report.digest} for {', '.join(report.architectures) or 'no Linux'}"))
    for name, value in report.variables.items():
        console.print(escape(f"  {name}={value}"), soft_wrap=True)
    print_explanation(console, report.explanation)


def read_images(state: State, pods: Iterable[Mapping[str, Any]]) -> None:
    """Read the images of pods, and name on stderr those that cannot be read."""
    containers = (one for pod in pods for one in read_pod(pod).containers)
    for name, facts in asyncio.run(_read(dict.fromkeys(one.image for one in containers if one.image))).items():
        if isinstance(facts, SourceError):
            note(f"{name} is judged by its name: {facts}")
        else:
            state.images.put(name, facts)


async def _read(images: Iterable[str]) -> dict[str, ImageFacts | SourceError]:
    from app.images.registry import Registries, RegistryAccess

    home, found = Path.home(), dict[str, ImageFacts | SourceError]()
    files = (
        Path(os.environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
        Path(os.environ.get("XDG_RUNTIME_DIR") or home) / "containers/auth.json",
        home / ".config/containers/auth.json",
        Path(os.environ.get("REGISTRY_AUTH_FILE") or os.devnull),
    )
    registries = Registries(RegistryAccess(), anywhere=True, credentials=[path for path in files if path.is_file()])
    for name in images:
        try:
            found[name] = await registries.read(name)
        except SourceError as error:
            found[name] = error
    await registries.close()
    return found
