"""What every configuration is: immutable, named by its content, strict about its keys."""

from __future__ import annotations

import hashlib
import json

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of every configuration: immutable, hashable by content, strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def digest(self) -> str:
        """A short stable name for this content: equal configurations have equal digests in every process."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]
