# SPDX-License-Identifier: Apache-2.0
"""Why a node's driver or compute capability does not do: each need of each container against cuda_driver.yaml."""

from collections.abc import Iterator
from functools import cache

from tests.placement import twin_node as said
from tests.placement.twin_cuda import driver_serves, image_facts, native_driver, numbers, toolkit_serves
from tests.placement.twin_world import RawNode, Wish


def cuda_causes(wish: Wish, node: RawNode, refuses_unknown: bool) -> Iterator[str]:
    """Judge the driver and the capability."""
    minimums = [each for each in (wish.cuda, *(rule.cuda for rule in wish.rules)) if each]
    images = () if wish.cuda else wish.images
    driver = said.driver(node)
    if driver is None and refuses_unknown and (minimums or images):
        yield "DriverUnknown"
    if driver is not None:
        consumer = "geforce" in (said.product_label(node) or "").lower()
        for cuda in minimums:
            if not driver_serves(wish.accept, cuda, None, None, [], driver, consumer):
                yield "DriverTooOld"
        for image in images:
            yield from image_causes(wish.accept, image, driver, consumer)
    yield from capability_causes(wish, minimums, images, said.capability(node), refuses_unknown)


@cache
def image_causes(accept: str, image: str, driver: str, consumer: bool) -> tuple[str, ...]:
    """Judge an image by the branches that it lists itself, if any (ImageRequirementUnmet), and as if it listed none."""
    facts = image_facts(image)
    needs = (accept, facts["cuda"], facts["native"])
    if driver_serves(*needs, facts["listed"], facts["claimed"], driver, consumer):
        return ()
    found = []
    if not driver_serves(*needs, None, facts["claimed"], driver, consumer):
        found.append("DriverTooOld")
    native = numbers(facts["native"]) if facts["native"] else native_driver(facts["cuda"])
    if facts["listed"] is not None and numbers(driver) < native and not in_list(facts["listed"], driver):
        found.append("ImageRequirementUnmet")
    return tuple(found)


def in_list(listed: list[str], driver: str) -> bool:
    """Tell whether a driver is of a listed branch, and not older than it says."""
    has = numbers(driver)
    return any(numbers(branch)[0] == has[0] and has >= numbers(branch) for branch in listed)


def capability_causes(
    wish: Wish, minimums: list[str], images: tuple[str, ...], has: str | None, refuses_unknown: bool
) -> Iterator[str]:
    """Judge floors that are asked, floors of images, and what toolkits can target (decision_procedure 5)."""
    floors = [
        wish.capability,
        *(rule.capability for rule in wish.rules),
        *(image_facts(each)["floor"] for each in images),
    ]
    floors = [floor for floor in floors if floor]
    if has is None:
        if refuses_unknown and (floors or minimums or images):
            yield "GPUFactsMissing"
        return
    if any(numbers(has) < numbers(floor) for floor in floors):
        yield "ComputeCapabilityTooLow"
    if not all(serves(cuda, has, True) for cuda in minimums):
        yield "ComputeCapabilityUnsupported"
    if not all(serves(image_facts(image)["cuda"], has, False) for image in images):
        yield "ComputeCapabilityUnsupported"


@cache
def serves(cuda: str, has: str, floor_only: bool) -> bool:
    """Remember `toolkit_serves`."""
    return toolkit_serves(cuda, has, floor_only)
