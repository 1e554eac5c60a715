# SPDX-License-Identifier: Apache-2.0
"""Why a node's driver or compute capability does not serve a pod, by cuda_driver.yaml for each container."""

import re
from collections.abc import Iterator

from tests.placement import twin_node
from tests.placement.twin_cuda import above_minor_floor, native_driver, numbers, toolkit_serves
from tests.placement.twin_images import Image, carried, has_code, image_facts, starts
from tests.placement.twin_world import Part, RawNode, Wish

Causes = Iterator[str]


def cuda_causes(wish: Wish, node: RawNode) -> Causes:
    """F34 to F36: the driver and the compute capability must serve every container."""
    parts = () if wish.cuda else wish.cuda_parts
    stated = tuple(part for part in parts if part.require and not part.lifted)
    images = tuple(image for part in parts if part not in stated and (image := needed(part)))
    driver = twin_node.driver(node)
    if twin_node.vendor(node) not in ("", "nvidia"):
        if wish.minimums or stated or images:
            yield "GPUWithoutCUDA"
    elif driver is None:
        if wish.refuses_unknown and (wish.minimums or stated or images):
            yield "DriverUnknown"
    else:
        for cuda in wish.minimums:
            yield from minimum_causes(wish.accept, cuda, driver)
        for part in stated:
            yield from environment_causes(wish.accept, part.require or "", node, driver)
        for image in images:
            yield from image_causes(wish.accept, image, node, driver)
    minimums = [*wish.minimums, *(least for part in stated if (least := lowest(part.require or "")))]
    yield from capability_causes(wish, minimums, images, twin_node.capability(node))


def code_causes(wish: Wish, node: RawNode) -> Causes:
    """F35: the framework in every container's image must have code for the GPU, if its builds are known."""
    has, machine = twin_node.capability(node), node.labels.get("kubernetes.io/arch")
    if has and not all(has_code(part.image, has, machine) for part in wish.cuda_parts if part.image):
        yield "ImageWithoutCodeForGPU"


def needed(part: Part) -> Image | None:
    """Return what a container's image requires if that is enforced: it has a source, and the environment does not lift
    it."""
    image = image_facts(part.image) if part.image else None
    return None if image is None or image.wish or part.lifted else image


def minimum_causes(accept: str, cuda: str, driver: str) -> Causes:
    """Judge a minimum CUDA natively and by minor version, since what the image carries is not known."""
    enough = numbers(driver) >= native_driver(cuda) or (accept != "Native" and above_minor_floor(cuda, driver))
    if not enough:
        yield "DriverTooOld"


def image_causes(accept: str, image: Image, node: RawNode, driver: str) -> Causes:
    """Judge an image by steps 1 to 6 of decision_procedure."""
    if numbers(driver) >= (numbers(image.native) if image.native else native_driver(image.cuda)):
        return
    begins = starts(image, numbers(driver)[0], twin_node.reported_cuda(node), consumer(node) is True)
    if begins and image.forces and consumer(node) and numbers(driver)[0] < native_driver(image.cuda)[0]:
        yield "DriverTooOld"
        return
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
    """Tell whether a pod may get a GeForce or a TITAN on the node; None if that is not known.

    If the node has several models, its labels name one, which the pod may get. A product that the table lacks is
    neither a GeForce nor a data-centre GPU (cuda_driver.yaml decision_procedure).
    """
    if consumer_name(node.labels.get("nvidia.com/gpu.product", "").lower()):
        return True
    kinds = {
        consumer_name(product) or (None if twin_node.product_row(product) is None else False)
        for product in twin_node.products(node)
    }
    return kinds.pop() if len(kinds) == 1 else None


def data_centre(node: RawNode) -> bool:
    """Tell whether all GPUs are data-centre products of the table, on which forward compatibility works."""
    names = twin_node.products(node)
    return bool(names) and not any(map(consumer_name, names)) and all(map(twin_node.product_row, names))


def environment_causes(accept: str, require: str, node: RawNode, driver: str) -> Causes:
    """Judge an environment's requirement literally, as the container toolkit does, and then as a minimum CUDA."""
    if not holds(require, node, driver):
        yield "ImageRequirementUnmet"
    cuda = lowest(require)
    if cuda and accept != "ForwardCompatible":
        yield from minimum_causes(accept, cuda, driver)


def holds(require: str, node: RawNode, driver: str) -> bool:
    """Evaluate a requirement: alternatives between spaces, each of which has constraints between commas that must all
    hold."""
    return any(all(clause(constraint, node, driver) for constraint in group.split(",")) for group in require.split())


def clause(text: str, node: RawNode, driver: str) -> bool:
    """Evaluate one constraint. It holds if the fact is not known, or if no such property exists."""
    match = re.fullmatch(r"(\w+?)(>=|<=|!=|=|<|>)(.+)", text)
    if match is None:
        return True
    what, operator, bound = match.groups()
    if what == "brand":
        is_consumer = consumer(node)
        return is_consumer is None or (("geforce" in bound) == is_consumer) == (operator == "=")
    has = {"cuda": twin_node.reported_cuda(node), "driver": driver, "arch": twin_node.capability(node)}.get(what)
    return has is None or compares(numbers(has), operator, numbers(bound))


def compares(has: list[int], operator: str, bound: list[int]) -> bool:
    """Compare as the operator says."""
    return {
        ">=": has >= bound, "<=": has <= bound, "=": has == bound,
        "!=": has != bound, ">": has > bound, "<": has < bound,
    }[operator]  # fmt: skip


def lowest(require: str) -> str | None:
    """Return the lowest CUDA among the alternatives, or None if one of them names no CUDA."""
    groups = [re.findall(r"(?:^|,)cuda>=?([\d.]+)", group) for group in require.split()]
    named = [cuda for group in groups for cuda in group]
    return min(named, key=numbers) if named else None


def capability_causes(wish: Wish, minimums: list[str], images: tuple[Image, ...], has: str | None) -> Causes:
    """Judge the capabilities that are asked, those of images, and what toolkits no longer support (decision_procedure
    7)."""
    floors = [wish.capability, *(rule.capability for rule in wish.rules), *(image.floor for image in images)]
    floors = [floor for floor in floors if floor]
    if has is None:
        if wish.refuses_unknown and (floors or minimums or images):
            yield "GPUFactsMissing"
        return
    if any(numbers(has) < numbers(str(floor)) for floor in floors):
        yield "ComputeCapabilityTooLow"
    if not all(toolkit_serves(cuda, has) for cuda in (*minimums, *(image.cuda for image in images))):
        yield "ComputeCapabilityUnsupported"
