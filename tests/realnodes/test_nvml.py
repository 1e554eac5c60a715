# SPDX-License-Identifier: Apache-2.0
"""The mock libnvidia-ml by itself: it follows its file, and a mistake in the file changes nothing."""

import ctypes
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.realnodes.nvidia import LIBRARY, find
from tests.realnodes.nvml_config import VARIABLE, report_xid, write_machine
from tests.realnodes.worlds import list_worlds

MACHINE = list_worlds()["a100-mig-mixed-half-tsgpu4"].machine
SUCCESS, UNINITIALIZED, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST = 0, 1, 6, 9, 10, 15
"""Return codes of nvml.h."""
XID_EVENT = 8
"""nvmlEventTypeXidCriticalError of nvml.h."""


class Event(ctypes.Structure):
    """An nvmlEventData_t of nvml.h."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gi", ctypes.c_uint),
        ("ci", ctypes.c_uint),
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "machine"))
    write_machine(MACHINE, tmp_path / "machine")
    return tmp_path / "machine"


@pytest.fixture
def nvml(file: Path) -> Iterator[ctypes.CDLL]:
    components = find()
    if isinstance(components, str):
        pytest.skip(components)
    library = ctypes.CDLL(str(components / LIBRARY))
    assert library.nvmlInit_v2() == SUCCESS
    yield library
    write_machine(MACHINE, file)
    assert library.nvmlShutdown() == SUCCESS


def driver(nvml: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(80)
    assert nvml.nvmlSystemGetDriverVersion(text, 80) == SUCCESS
    return text.value.decode()


def handle(nvml: ctypes.CDLL, uuid: str) -> ctypes.c_void_p:
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) == SUCCESS
    return device


def test_machine_is_that_of_the_file(nvml: ctypes.CDLL) -> None:
    count, name = ctypes.c_uint(), ctypes.create_string_buffer(96)
    device = handle(nvml, MACHINE.gpus[3].uuid)

    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == SUCCESS
    assert nvml.nvmlDeviceGetName(device, name, 96) == SUCCESS
    assert (count.value, name.value.decode()) == (8, MACHINE.gpus[3].name)
    assert driver(nvml) == MACHINE.driver


def test_a_changed_file_is_read_again(nvml: ctypes.CDLL, file: Path) -> None:
    device = handle(nvml, MACHINE.gpus[7].uuid)
    write_machine(dataclasses.replace(MACHINE, driver="580.65.06", gpus=MACHINE.gpus[:7]), file)

    assert driver(nvml) == "580.65.06"
    assert nvml.nvmlDeviceGetName(device, ctypes.create_string_buffer(96), 96) == GPU_IS_LOST


@pytest.mark.parametrize("mistake", ["nonsense", "cuda twelve", "gpu\nmemory 12.5", "instance", "gpu\n" * 17])
def test_a_mistake_in_the_file_changes_nothing(nvml: ctypes.CDLL, file: Path, mistake: str) -> None:
    file.write_text(f"driver 1.2.3\n{mistake}\n", "utf-8")

    assert driver(nvml) == MACHINE.driver


def test_without_the_file_no_driver_is_loaded(nvml: ctypes.CDLL, file: Path) -> None:
    file.unlink()

    assert nvml.nvmlInit_v2() == DRIVER_NOT_LOADED
    assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())) == DRIVER_NOT_LOADED


def test_nothing_is_answered_before_the_library_is_initialized(nvml: ctypes.CDLL) -> None:
    nvml.nvmlShutdown()
    try:
        assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())) == UNINITIALIZED
    finally:
        nvml.nvmlInit_v2()


def test_a_set_has_the_events_of_its_gpus_that_come_after_it(nvml: ctypes.CDLL, file: Path) -> None:
    watched, other = MACHINE.gpus[0], MACHINE.gpus[1]
    report_xid(file, watched, 48)
    events, event = ctypes.c_void_p(), Event()
    assert nvml.nvmlEventSetCreate(ctypes.byref(events)) == SUCCESS
    device = handle(nvml, watched.uuid)
    assert nvml.nvmlDeviceRegisterEvents(device, ctypes.c_ulonglong(XID_EVENT), events) == SUCCESS
    report_xid(file, other, 79)
    report_xid(file, watched, 94, watched.instances[2])

    assert nvml.nvmlEventSetWait_v2(events, ctypes.byref(event), 0) == SUCCESS
    assert (event.device, event.type, event.data) == (device.value, XID_EVENT, 94)
    assert (event.gi, event.ci) == (watched.instances[2].gi, watched.instances[2].ci)
    assert nvml.nvmlEventSetWait_v2(events, ctypes.byref(event), 0) == TIMEOUT
    assert nvml.nvmlEventSetFree(events) == SUCCESS


def test_a_mig_device_has_its_gpu_and_its_attributes(nvml: ctypes.CDLL) -> None:
    gpu = MACHINE.gpus[0]
    part = gpu.instances[3]
    device, parent, gi = handle(nvml, part.uuid), ctypes.c_void_p(), ctypes.c_uint()

    assert nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, ctypes.byref(parent)) == SUCCESS
    assert nvml.nvmlDeviceGetGpuInstanceId(device, ctypes.byref(gi)) == SUCCESS
    assert (parent.value, gi.value) == (handle(nvml, gpu.uuid).value, part.gi)
    assert nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, len(gpu.instances), ctypes.byref(device)) == NOT_FOUND
