"""Whether a model is computed by the native kernels, and loading it if so."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import Literal

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError
from kernels.cpu.compiler import NoCompilerError
from kernels.cpu.library import best_library
from kernels.cpu.program import NativeError

from ..memory import foreign_memory_errors
from ..model.gguf_source import GgufSource
from ..model.rounded import BITS, RoundedSource
from ..model.spec import LlamaSpec
from ..models import ModelSource, OpenedModel, usable_threads
from .model import NativeModel, unsupported
from .weights import BlockSource, PackedSource, packed_share

logger = logging.getLogger(__name__)

MOSTLY = 0.9
"""Share of a GGUF file's weights that must be in a format that is kept for "auto" to keep them."""
Weights = Literal["int8", "int4", "packed"]


@dataclass(frozen=True, slots=True)
class NativeLoaded(OpenedModel):
    """A model inside the native library, ready to run."""

    model: NativeModel


def wanted_weights(config: EngineConfig, opened: OpenedModel, source: ModelSource) -> Weights | None:
    """In which form the native kernels would take the weights; None where they are not asked for or cannot compute.

    "auto" asks for a GGUF file's own groups, unless the configuration names a number format.
    """
    if opened.device.type != "cpu" or config.kernels != "auto" or config.layout.devices > 1:
        return None
    spec = source.spec
    if not isinstance(spec, LlamaSpec):
        return None
    if config.quantization == "int8" or config.quantization == "int4":
        wanted: Weights = config.quantization
    elif config.quantization == "auto" and config.dtype == "auto" and _is_packed(source):
        wanted = "packed"
    else:
        return None
    if why := unsupported(spec):
        logger.warning("The native kernels cannot compute %s: %s. torch does, more slowly.", config.model, why)
        return None
    return wanted


def load_native(config: EngineConfig, opened: OpenedModel, source: ModelSource) -> NativeLoaded | None:
    """The model in the native library; None where torch is to compute it, which the log explains if it is a pity.

    Raises ModelFormatError, UnsupportedModelError, OutOfMemoryError; ConfigError for threads that do not start.
    """
    wanted = wanted_weights(config, opened, source)
    if wanted is None:
        return None
    try:
        library = best_library()
    except NoCompilerError as error:
        logger.warning("%s Until then torch computes %s, several times more slowly.", error, config.model)
        return None
    threads, spec = usable_threads(config), source.spec
    assert isinstance(spec, LlamaSpec)
    try:
        with foreign_memory_errors(f"The weights of {config.model}"):
            model = NativeModel(spec, source, _blocks(source, wanted), library, threads, _name(source, wanted))
    except NativeError as error:
        raise ConfigError(f"threads = {threads} is not possible here: {error}; fewer may be.") from error
    logger.info("Weights are kept as %s, computed by native kernels (%s).", model.quantization, model.variant)
    values = {field.name: getattr(opened, field.name) for field in fields(opened)}
    return NativeLoaded(**{**values, "dtype": model.dtype}, model=model)


def _is_packed(source: ModelSource) -> bool:
    return isinstance(source, GgufSource) and packed_share(source.file) >= MOSTLY


def _blocks(source: ModelSource, wanted: Weights) -> BlockSource:
    if wanted == "packed":
        assert isinstance(source, GgufSource)
        return PackedSource(source, source.file)
    return RoundedSource(source, BITS[wanted])


def _name(source: ModelSource, wanted: Weights) -> str:
    """For people: the format that most of a file's groups have, or the one they were rounded to."""
    if wanted != "packed" or not isinstance(source, GgufSource):
        return wanted
    sizes: dict[str, int] = {}
    for info in source.file.tensors.values():
        sizes[info.kind.name] = sizes.get(info.kind.name, 0) + info.size
    return max(sizes, key=lambda kind: sizes[kind])
