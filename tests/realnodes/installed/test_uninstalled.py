# SPDX-License-Identifier: Apache-2.0
"""The second uninstall block of deploy/README, after all other tests of the installation."""

from tests.e2e.stage import eventually
from tests.realnodes.printed_install import PrintedInstallation


def test_uninstall_leaves_nothing(installed: PrintedInstallation) -> None:
    """ADM-10, F114: no object of ours in any namespace, and none outside of one."""
    assert any("gpu-usher-certificates" in line for line in installed.objects())

    installed.remove(keep_policies=False)

    eventually("nothing is left", lambda: installed.objects() == [])
