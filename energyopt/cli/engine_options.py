"""From a verb's options to an engine's configuration: an option is called what the field is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from energyopt.core.config import EngineConfig, parse_config
from energyopt.core.errors import ConfigError
from energyopt.core.units import parse_bytes, parse_interval

from .kv_options import tier_settings
from .layout_options import layout_settings
from .transfer_options import transfer_settings


def engine_config(options: Mapping[str, Any]) -> EngineConfig:
    """The engine that the options (a Typer context's ``params``) describe.

    An option with the name of a field of ``EngineConfig`` is that field; the cache's options have vLLM's names.
    Raises ConfigError where they do not fit together.
    """
    own = {name: options[name] for name in EngineConfig.model_fields if name in options}
    if isinstance(own.get("speculative_config"), str):
        own["speculative_config"] = _json(own["speculative_config"])
    memory = options["kv_cache_memory_bytes"]
    cache = {
        "block_tokens": options["block_size"],
        "prefix_caching": options["enable_prefix_caching"],
        "memory_bytes": None if memory is None else parse_bytes(memory),
        "retention_interval": parse_interval(options["prefix_cache_retention_interval"]),
        "match_tokens": options["prefix_match_unit"],
    }
    own["kv_transfer"] = transfer_settings(options)
    return parse_config(
        EngineConfig, {**own, "layout": layout_settings(options), "kv": {**cache, **tier_settings(options)}}
    )


def _json(text: str) -> object:
    """What an option says in JSON. Raises ConfigError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f'--speculative-config is no JSON ({error}); an example: {{"method": "ngram"}}.') from error
