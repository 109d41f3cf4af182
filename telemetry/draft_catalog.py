"""Metrics of guessed tokens: how many were guessed, how many came true, how deep the guesses are now."""

from __future__ import annotations

from .metric import Metric, own

_LABELS = ("model_name", "engine")

DEPTH = own(
    "draft_depth", "gauge", "Tokens guessed per request in the newest step; 0 where guessing does not pay.", "model"
)
GUESSED = own(
    "draft_tokens_total", "counter", "Guessed tokens by what came of them: accepted, rejected.", "model", "outcome"
)

VLLM_DRAFTS = Metric("vllm:spec_decode_num_drafts_total", "counter", "Drafts that were verified.", _LABELS)
VLLM_DRAFTED = Metric("vllm:spec_decode_num_draft_tokens_total", "counter", "Guessed tokens.", _LABELS)
VLLM_ACCEPTED = Metric("vllm:spec_decode_num_accepted_tokens_total", "counter", "Guesses that came true.", _LABELS)
VLLM_BY_PLACE = Metric(
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "counter",
    "Guesses that came true, by their place in the draft.",
    (*_LABELS, "position"),
)

DRAFTS = (DEPTH, GUESSED, VLLM_DRAFTS, VLLM_DRAFTED, VLLM_ACCEPTED, VLLM_BY_PLACE)
