"""What becomes of a client's body on its two legs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pools.legs import legs_of, put_first, with_offer

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5)


@given(body=st.dictionaries(st.text(), JSON, max_size=6), spaces=st.sampled_from(["", " ", "\n\t"]))
def test_fields_are_put_in_front_and_the_rest_stays_as_it_was(body: dict[str, Any], spaces: str) -> None:
    raw = (spaces + json.dumps(body, ensure_ascii=False) + spaces).encode()
    changed = put_first(raw, {"kv": {"a": [1]}})
    assert json.loads(changed) == {"kv": {"a": [1]}, **body}
    assert changed.endswith(raw.lstrip()[1:])


def test_a_request_becomes_two() -> None:
    raw = b'{"messages": [{"role": "critic", "content": "x", "odd": 1}], "max_tokens": 70, "stream": true, "tools": []}'
    legs = legs_of(raw)
    assert legs.stream
    assert legs.prefill is not None
    prefill = json.loads(legs.prefill)
    assert prefill["messages"] == [{"role": "critic", "content": "x", "odd": 1}]
    assert (prefill["max_tokens"], prefill["kv_transfer_params"]["do_remote_decode"]) == (1, True)
    assert "stream" not in prefill
    assert prefill["tools"] == []
    assert legs.decode.endswith(raw[1:])
    decode = json.loads(with_offer(legs.decode, {"do_remote_prefill": True}))
    assert decode["kv_transfer_params"] == {"do_remote_prefill": True}
    assert 0 <= decode["seed"] < 1 << 62


@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"best_of": 3}, {"kv_transfer_params": {}}]
)
def test_what_is_not_one_prompt_with_one_answer_has_one_leg(fields: dict[str, Any]) -> None:
    assert legs_of(json.dumps({"prompt": "x", **fields}).encode()).prefill is None


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 5}, {"seed": None}])
def test_a_seed_is_added_only_where_chance_decides(fields: dict[str, Any]) -> None:
    raw = json.dumps({"prompt": [1, 2], **fields}).encode()
    assert json.loads(legs_of(raw).decode).get("seed") == fields.get("seed") or fields == {"seed": None}
    if fields != {"seed": None}:
        assert legs_of(raw).decode == raw


@given(raw=st.binary(max_size=80))
def test_anything_may_come(raw: bytes) -> None:
    legs = legs_of(raw)
    assert legs.decode.endswith(raw[-5:])
