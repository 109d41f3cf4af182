"""A step and the groups of its pool arrive as they were sent, tables of further groups included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energyopt.core.errors import EngineError
from engine.batch import BlockCopy
from engine.inputs import StepInputs
from engine.kv.layout import FullAttention, GroupSpec, RecurrentState, SlidingWindow
from engine.parallel.groups import pack_groups, unpack_groups
from engine.parallel.message import pack_inputs, unpack_inputs
from engine.parallel.wire import pack, unpack
from kernels.pages import Span

TABLE = st.lists(st.integers(-1, 99), max_size=5)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_step_arrives_as_it_was(data: st.DataObject) -> None:
    count, groups = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
    spans = [Span(i, data.draw(st.integers(0, 50)), 1, data.draw(TABLE)) for i in range(count)]
    others = tuple([data.draw(TABLE) for _ in range(count)] for _ in range(groups))
    sent = StepInputs(list(range(count)), spans, list(range(count)), (BlockCopy(3, 4),), others)
    assert unpack_inputs(pack_inputs(sent)) == sent


def test_groups_arrive_without_their_layers() -> None:
    groups: tuple[GroupSpec, ...] = (FullAttention(8, (1,)), SlidingWindow(8, 9, (0,)), RecurrentState(8, "kda"))
    got = unpack_groups(unpack(pack({"groups": pack_groups(groups)}))["groups"])
    assert got == (FullAttention(8), SlidingWindow(8, 9), RecurrentState(8, "kda"))


def test_a_group_of_no_known_kind_is_refused() -> None:
    with pytest.raises(EngineError, match="is not known"):
        unpack_groups([{"kind": "Path", "block_tokens": 3}])
