# SPDX-License-Identifier: Apache-2.0
"""Why a node's driver or compute capability does not do: each need of each container against cuda_driver.yaml."""

import re
from collections.abc import Iterator

from tests.placement import twin_node as said
from tests.placement.twin_cuda import above_minor_floor, native_driver, numbers, toolkit_serves
from tests.placement.twin_images import Image, carried, image_facts, starts
from tests.placement.twin_world import Part, RawNode, Wish

Causes = Iterator[str]


def cuda_causes(wish: Wish, node: RawNode, refuses_unknown: bool) -> Causes:
    """Judge the driver and the capability."""
    parts = () if wish.cuda else wish.cuda_parts
    told = tuple(part for part in parts if part.require and not part.lifted)
    images = tuple(image for part in parts if part not in told and (image := needed(part)))
    driver = said.driver(node)
    if driver is None:
        if refuses_unknown and (wish.minimums or told or images):
            yield "DriverUnknown"
    else:
        for cuda in wish.minimums:
            yield from minimum_causes(wish.accept, cuda, driver)
        for part in told:
            yield from told_causes(wish.accept, part.require or "", node, driver)
        for image in images:
            yield from image_causes(wish.accept, image, node, driver)
    minimums = [*wish.minimums, *(least for part in told if (least := lowest(part.require or "")))]
    yield from capability_causes(wish, minimums, images, said.capability(node), refuses_unknown)


def needed(part: Part) -> Image | None:
    """Give what a container's image needs where it is enforced: it is sourced, and its environment lifts nothing."""
    found = image_facts(part.image) if part.image else None
    return None if found is None or found.wish or part.lifted else found


def minimum_causes(accept: str, cuda: str, driver: str) -> Causes:
    """Judge a least CUDA: native or by minor version, since nobody knows what the image carries."""
    enough = numbers(driver) >= native_driver(cuda) or (accept != "Native" and above_minor_floor(cuda, driver))
    if not enough:
        yield "DriverTooOld"


def image_causes(accept: str, image: Image, node: RawNode, driver: str) -> Causes:
    """Follow decision_procedure 1 to 6 for an image."""
    if numbers(driver) >= (numbers(image.native) if image.native else native_driver(image.cuda)):
        return
    begins = starts(image, numbers(driver)[0], said.reported_cuda(node), consumer(node) is True)
    minor = above_minor_floor(image.cuda, driver)
    if begins and minor and accept != "Native":
        return
    if begins and not minor and accept == "ForwardCompatible" and data_centre(node) and carried(image, driver):
        return
    if not begins:
        yield "ImageRequirementUnmet"
    if begins or not minor or accept == "Native":
        yield "DriverTooOld"


def consumer_name(product: str) -> bool:
    """Tell whether a product is a GeForce or a TITAN."""
    return "geforce" in product or "titan" in product


def consumer(node: RawNode) -> bool | None:
    """Tell whether a pod may get a GeForce or a TITAN there; None where it is not known.

    Of several models the labels name one, which the pod may get. A product that the table lacks is neither a GeForce
    nor a data-centre GPU (cuda_driver.yaml decision_procedure).
    """
    if consumer_name(node.labels.get("nvidia.com/gpu.product", "").lower()):
        return True
    kinds = {
        consumer_name(product) or (None if said.product_row(product) is None else False)
        for product in said.products(node)
    }
    return kinds.pop() if len(kinds) == 1 else None


def data_centre(node: RawNode) -> bool:
    """Tell whether forward compatibility is known to work on the GPUs: products of the table that are no GeForce."""
    names = said.products(node)
    return bool(names) and not any(map(consumer_name, names)) and all(map(said.product_row, names))


def told_causes(accept: str, require: str, node: RawNode, driver: str) -> Causes:
    """Judge what an environment requires: literally, as the container toolkit does, then as a least CUDA."""
    if not holds(require, node, driver):
        yield "ImageRequirementUnmet"
    cuda = lowest(require)
    if cuda and accept != "ForwardCompatible":
        yield from minimum_causes(accept, cuda, driver)


def holds(require: str, node: RawNode, driver: str) -> bool:
    """Read a requirement: alternatives between spaces, each of constraints between commas that must all hold."""
    return any(all(clause(each, node, driver) for each in group.split(",")) for group in require.split())


def clause(text: str, node: RawNode, driver: str) -> bool:
    """Judge one constraint; of what is not known, and of a property that nobody knows, it holds."""
    found = re.fullmatch(r"(\w+?)(>=|<=|!=|=|<|>)(.+)", text)
    if found is None:
        return True
    what, operator, wanted = found.groups()
    if what == "brand":
        found_consumer = consumer(node)
        return found_consumer is None or (("geforce" in wanted) == found_consumer) == (operator == "=")
    has = {"cuda": said.reported_cuda(node), "driver": driver, "arch": said.capability(node)}.get(what)
    return has is None or compares(numbers(has), operator, numbers(wanted))


def compares(has: list[int], operator: str, wanted: list[int]) -> bool:
    """Compare as the operator says."""
    return {
        ">=": has >= wanted, "<=": has <= wanted, "=": has == wanted,
        "!=": has != wanted, ">": has > wanted, "<": has < wanted,
    }[operator]  # fmt: skip


def lowest(require: str) -> str | None:
    """Find the least CUDA that some alternative names; None where an alternative names none."""
    groups = [re.findall(r"(?:^|,)cuda>=?([\d.]+)", group) for group in require.split()]
    named = [cuda for group in groups for cuda in group]
    return min(named, key=numbers) if named else None


def capability_causes(
    wish: Wish, minimums: list[str], images: tuple[Image, ...], has: str | None, refuses_unknown: bool
) -> Causes:
    """Judge floors that are asked, floors of images, and what toolkits no longer support (decision_procedure 7)."""
    floors = [wish.capability, *(rule.capability for rule in wish.rules), *(each.floor for each in images)]
    floors = [floor for floor in floors if floor]
    if has is None:
        if refuses_unknown and (floors or minimums or images):
            yield "GPUFactsMissing"
        return
    if any(numbers(has) < numbers(str(floor)) for floor in floors):
        yield "ComputeCapabilityTooLow"
    if not all(toolkit_serves(cuda, has) for cuda in (*minimums, *(image.cuda for image in images))):
        yield "ComputeCapabilityUnsupported"
