# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's container toolkit on a node: its settings, the driver that it finds, and the handler of RuntimeClass nvidia.

The runtime is NVIDIA's own. What it mounts into containers is the mock driver: a folder that has the places of a driver
installed by the GPU operator, with the mock libnvidia-ml in it and no other library.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.controlplane.kubectl import Object
from tests.realnodes.components import RUNC
from tests.realnodes.nvidia import LIBRARY
from tests.realnodes.nvml_config import VARIABLE, Machine

RUNTIME_CLASS: Object = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
"""As the GPU operator makes it."""
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
SETTINGS_VARIABLE = "NVIDIA_CTK_CONFIG_FILE_PATH"
"""The variable that names the toolkit's configuration file (nvidia-container-toolkit api/config/v1/config.go)."""
LIBRARIES = "usr/lib64"
"""One of the folders in which the toolkit looks for a driver (its pkg/lookup/library.go)."""
MODE = "auto"
"""The toolkit's default, which means jit-cdi: the runtime itself makes a CDI specification for each container."""
SETTINGS = """accept-nvidia-visible-devices-envvar-when-unprivileged = {accept_variable}
accept-nvidia-visible-devices-as-volume-mounts = {accept_mounts}
[nvidia-container-cli]
root = "{root}"
path = "{command}"
[nvidia-container-runtime]
mode = "{mode}"
runtimes = ["{runc}"]
debug = "{log}"
[nvidia-container-runtime-hook]
path = "{built}/nvidia-container-runtime-hook"
[nvidia-ctk]
path = "{built}/nvidia-cdi-hook"
"""
HANDLER = """[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
  BinaryName = "{built}/nvidia-container-runtime"
  SystemdCgroup = false
"""
"""What `nvidia-ctk runtime configure --runtime=containerd` adds to containerd's configuration."""


class Toolkit:
    """The toolkit of one node; `folder` is the node's, `built` has NVIDIA's programs."""

    def __init__(self, folder: Path, built: Path) -> None:
        self._folder = folder
        self._built = built
        self._settings = folder / "toolkit.toml"
        self.configure()

    def configure(
        self, accept_variable: bool = True, accept_mounts: bool = False, *, mode: str = MODE, command: str = ""
    ) -> None:
        """Write the settings, which the runtime reads for each container anew.

        `accept_variable` says that NVIDIA_VISIBLE_DEVICES counts in containers without CAP_SYS_ADMIN, `accept_mounts`
        that device lists as volume mounts count. `command` is the path of nvidia-container-cli; without one the toolkit
        looks for it in PATH. The defaults are the toolkit's.
        """
        settings = SETTINGS.format(
            accept_variable=str(accept_variable).lower(),
            accept_mounts=str(accept_mounts).lower(),
            root=self.driver,
            mode=mode,
            command=command,
            runc=RUNC,
            log=self._folder / "toolkit.log",
            built=self._built,
        )
        self._settings.write_text(settings, "utf-8")

    @property
    def driver(self) -> Path:
        """The folder that is to the toolkit what / is to a driver installed on the machine."""
        return self._folder / "driver-root"

    def install_driver(self, machine: Machine) -> None:
        """Put the driver's files in place. Its library carries the version in its name, as NVIDIA's do."""
        shutil.rmtree(self.driver, ignore_errors=True)
        folder = self.driver / LIBRARIES
        folder.mkdir(parents=True)
        library = LIBRARY.replace(".1", f".{machine.driver}")
        shutil.copy(self._built / LIBRARY, folder / library)
        (folder / LIBRARY).symlink_to(library)
        (self.driver / "dev").symlink_to("/dev")

    def handler(self, name: str) -> str:
        """Give the part of containerd's configuration that has a runtime handler of the toolkit."""
        return HANDLER.format(name=name, built=self._built)

    def environment(self) -> Mapping[str, str]:
        """Give the environment that containerd hands on to the runtime."""
        return {SETTINGS_VARIABLE: str(self._settings), VARIABLE: str(self._folder / "machine")}
