"""API keys by tenant, from a file: one key a line, ``TENANT KEY``; empty lines and lines that begin with # are skipped.

A tenant may have several keys, so that one can be replaced without a pause. The tenant's name labels its energy.
"""

from __future__ import annotations

import re
from pathlib import Path

from energyopt.core.errors import ConfigError
from energyopt.core.files import read_bounded

MAX_BYTES = 1 << 20
MAX_TENANTS = 64
"""Each tenant makes metric series of its own."""
RESERVED = ("anonymous", "nobody", "other")
"""Labels that mean something else."""
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def read_keys(path: Path) -> dict[str, str]:
    """Tenant by key. Raises ConfigError that names the line, never a key."""
    raw = read_bounded(path, MAX_BYTES, what="key file")
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"The key file {path} cannot be read: {error}.") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            tenant, key = _entry(path, number, line)
            if key in keys:
                raise ConfigError(f"{path}, line {number}: this key is given twice.")
            keys[key] = tenant
    tenants = len(set(keys.values()))
    if not 0 < tenants <= MAX_TENANTS:
        raise ConfigError(f"The key file {path} names {tenants} tenants: allowed are 1 to {MAX_TENANTS}.")
    return keys


def _entry(path: Path, number: int, line: str) -> tuple[str, str]:
    words = line.split()
    if len(words) != 2:
        raise ConfigError(f"{path}, line {number}: expected a tenant and its key, two words.")
    tenant, key = words
    if not _TENANT.fullmatch(tenant) or tenant in RESERVED:
        raise ConfigError(
            f"{path}, line {number}: the tenant {tenant[:64]!r} is not allowed: expected up to 63 of a-z 0-9 . _ -, "
            f"and none of {', '.join(RESERVED)}."
        )
    return tenant, key
