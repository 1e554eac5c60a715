# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.nvidia_versions`: which versions of NVIDIA's parts were run, and which were read from recorded data.

Nothing is written by hand but the names: what was run is pinned by the Go modules of the tests; what was read is named
by the recorded data beside its source.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.docstrings import ROOT
from tests.nodes.test_dcgm_exporter import LAYOUTS
from tests.realnodes.nvidia import DISCOVERY, MASTER_MODULE, MODULE, PLUGIN, PROGRAMS, TOOLKIT

PAGE = ROOT / "tests" / "results" / "nvidia-versions.md"
WORLDS = ROOT / "tests" / "gfd" / "README.md"
SLICES = ROOT / "tests" / "dra" / "recorded" / "README.md"
CORPUS = ROOT / "tests" / "corpus"
TABLES = ROOT / "app" / "knowledge"
VERSION = re.compile(r"v\d+\.\d+\.\d+")
HEAD = """# Versions of NVIDIA's parts

`make generated` wrote this. The programs that run are those that the Go modules of `tests/realnodes` pin, on a [mock
driver](../../docs/real-nodes.md#what-is-real). What is read is data that a part published: labels, device slices,
metrics, and the pods of its manifests.

| part | run by the tests | read from recorded data | neither |
|---|---|---|---|
"""
FOOT = """
*Neither* says what no test covers. Other versions are expected to work where their labels, resources, devices and
metrics have the same form.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part, with the versions that were run and read, and what was not tried."""

    name: str
    run: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    neither: str = ""

    @property
    def row(self) -> str:
        """The row of the table."""
        return f"| {self.name} | {', '.join(self.run) or 'no'} | {'; '.join(self.read) or 'no'} | {self.neither} |"


def pinned(module: str, source: str) -> str:
    """Find the version of a module that a go.mod pins.

    Raises ValueError where it pins none.
    """
    text = ((MASTER_MODULE if source == DISCOVERY else MODULE) / "go.mod").read_text("utf-8")
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"go.mod: pins no {module}")
    return found[1]


def _programs(module: str) -> str:
    return ", ".join(f"`{name}`" for name, source in PROGRAMS.items() if source == module)


def images(name: str) -> tuple[str, ...]:
    """List the tags of an image in the manifests of the corpus."""
    pattern = re.compile(rf"/{re.escape(name)}:([\w.-]+)")
    texts = (path.read_text("utf-8") for path in CORPUS.glob("*.yaml"))
    return tuple(sorted({tag for text in texts for tag in pattern.findall(text)}))


def _manifests(*names: str) -> Iterator[str]:
    for name in names:
        yield from (f"the pod of {name} {tag} (tests/corpus)" for tag in images(name))


def _sources(module: str) -> str:
    """Name the versions of a module whose sources the fact tables cite."""
    cited = re.compile(rf"{re.escape(module.removeprefix('github.com/'))} ({VERSION.pattern})")
    versions = {version for path in TABLES.glob("*.yaml") for version in cited.findall(path.read_text("utf-8"))}
    return f"rules from the sources of {', '.join(sorted(versions))}"


def _recorded_worlds() -> str:
    versions = sorted(set(VERSION.findall(WORLDS.read_text("utf-8").partition("The mocks lack")[0])) - {"v0.13.3"})
    return f"labels and resources of {' and '.join(versions)} (tests/gfd)"


def _recorded_slices() -> str:
    (commit,) = re.findall(r"dra-driver-nvidia-gpu ([0-9a-f]{8})", SLICES.read_text("utf-8"))
    return f"slices, classes and claims of commit {commit} on real kubelets (tests/dra/recorded)"


def parts() -> Iterable[Part]:
    """List the parts."""
    worlds = _recorded_worlds()
    plugin = pinned(PLUGIN, PLUGIN)
    releases = [name for name in LAYOUTS if name[0].isdigit()]
    return (
        Part("device plugin, MPS control daemon", (plugin,), (worlds, *_manifests("k8s-device-plugin"))),
        Part("GPU Feature Discovery", (plugin,), (worlds,)),
        Part(
            "container toolkit",
            (f"{pinned(TOOLKIT, TOOLKIT)} ({_programs(TOOLKIT)})",),
            (_sources(TOOLKIT), *_manifests("container-toolkit")),
        ),
        Part("Node Feature Discovery", (f"{pinned(DISCOVERY, DISCOVERY)} (`nfd-master`)",), (), "its worker"),
        Part("DRA driver", (), (_recorded_slices(),), "its plugins, and what a container gets of a claim"),
        Part(
            "DCGM exporter",
            (),
            (f"metrics in the layouts of {' and '.join(releases)}", *_manifests("dcgm-exporter")),
            "the program and DCGM, which need a GPU",
        ),
        Part(
            "GPU Operator",
            (),
            tuple(_manifests("gpu-operator-validator", "k8s-mig-manager", "k8s-driver-manager")),
            "the operator, MIG Manager and the driver's containers",
        ),
    )


def page() -> str:
    """Write the page."""
    return HEAD + "".join(f"{part.row}\n" for part in parts()) + FOOT


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
