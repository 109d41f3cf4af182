"""How tokens are guessed ahead of the model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .frozen import Config


class SpeculativeConfig(Config):
    """Guessing tokens and verifying several in one step; the names are those of vLLM's ``--speculative-config``.

    ``ngram`` guesses what followed the last ``prompt_lookup_min`` to ``prompt_lookup_max`` tokens earlier in the same
    request, ``draft_model`` what a smaller ``model`` of the same vocabulary would write; who names a model need not
    name the method. With ``adaptive`` the depth, up to ``num_speculative_tokens``, is the one with the least joules per
    token (the least time where joules are not measured), and 0 where none saves anything.
    """

    method: Literal["ngram", "draft_model"] = "ngram"
    model: str | None = None
    num_speculative_tokens: int = Field(4, ge=1, le=16)
    prompt_lookup_max: int = Field(4, ge=1, le=16)
    prompt_lookup_min: int = Field(2, ge=1, le=16)
    adaptive: bool = True

    @model_validator(mode="before")
    @classmethod
    def _a_model_drafts(cls, data: object) -> object:
        named = isinstance(data, dict) and data.get("model") is not None and "method" not in data
        return {**data, "method": "draft_model"} if isinstance(data, dict) and named else data

    @model_validator(mode="after")
    def _model_goes_with_its_method(self) -> SpeculativeConfig:
        if (self.method == "draft_model") != (self.model is not None):
            raise ValueError("method draft_model needs model, the draft model, and no other method has one")
        return self

    @model_validator(mode="after")
    def _lengths_are_in_order(self) -> SpeculativeConfig:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} is above prompt_lookup_max {self.prompt_lookup_max}"
            )
        return self
