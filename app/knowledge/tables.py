# SPDX-License-Identifier: Apache-2.0
"""All fact tables as one value. Texts come in (files are read at the edge), typed tables go out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from app.errors import KnowledgeError
from app.knowledge.cuda import CUDATables, load_cuda
from app.knowledge.families import Families, load_families
from app.knowledge.images import Images, load_images
from app.knowledge.mig import MIGProfiles, load_profiles
from app.knowledge.products import Products, load_products

FILES = ("gpu_products.yaml", "mig_profiles.yaml", "cuda_driver.yaml", "image_cuda.yaml", "families.yaml")


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is known of GPUs, drivers, images and resources."""

    products: Products
    mig: MIGProfiles
    cuda: CUDATables
    images: Images
    families: Families


def load_knowledge(texts: Mapping[str, str]) -> Knowledge:
    """Read the tables named in FILES, by file name.

    Raises KnowledgeError, naming the file.
    """
    documents = {name: _read(name, texts) for name in FILES}
    try:
        return Knowledge(
            products=load_products(documents["gpu_products.yaml"]["products"]),
            mig=load_profiles(documents["mig_profiles.yaml"]["products"]),
            cuda=load_cuda(documents["cuda_driver.yaml"]),
            images=load_images(documents["image_cuda.yaml"]),
            families=load_families(
                documents["families.yaml"]["families"],
                documents["families.yaml"]["infrastructure_namespaces"],
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise KnowledgeError(f"fact tables: {type(error).__name__}: {error}") from error


def _read(name: str, texts: Mapping[str, str]) -> Any:
    try:
        return yaml.load(texts[name], yaml.CSafeLoader)
    except (KeyError, yaml.YAMLError) as error:
        raise KnowledgeError(f"{name}: {error}") from error
