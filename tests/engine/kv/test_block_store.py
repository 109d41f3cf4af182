"""What every block store must do, held against each of them: in memory, on disk, in Mooncake Store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.kv.block_store import BlockStore, Got, MemoryStore, Put
from engine.kv.checksum import checksum
from engine.kv.disk import DiskStore
from engine.kv.mooncake import MooncakeAddress, MooncakeStore

SIZE = 4096
Open = Callable[[str], BlockStore]
"""Opens one more store of a layout onto the same content, as another engine would."""


@pytest.fixture(params=["memory", "disk", "mooncake"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    content: dict[tuple[str, bytes], tuple[bytes, int]] = {}
    opened: list[BlockStore] = []

    def memory(layout: str) -> BlockStore:
        return MemoryStore(layout, content)

    def disk(layout: str) -> BlockStore:
        return DiskStore(tmp_path / "kv", layout, 64 * SIZE, SIZE)

    def mooncake(layout: str) -> BlockStore:
        url = request.getfixturevalue("mooncake_pool").url
        return MooncakeStore(MooncakeAddress.parse(url), f"{tmp_path} {layout}", 1 << 24, SIZE)

    makers: dict[str, Open] = {"memory": memory, "disk": disk, "mooncake": mooncake}

    def make(layout: str) -> BlockStore:
        opened.append(makers[request.param](layout))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def _block(text: str) -> memoryview:
    return memoryview(text.encode().ljust(SIZE, b"."))


def put(store: BlockStore, **blocks: str) -> list[Put]:
    views = [_block(text) for text in blocks.values()]
    return list(store.put([key.encode() for key in blocks], views, [checksum(view) for view in views]))


def get(store: BlockStore, *keys: str) -> list[str | Got]:
    """The text of each whole block, or how it failed."""
    views = [memoryview(bytearray(SIZE)) for _ in keys]
    ends = store.get([key.encode() for key in keys], views)
    return [
        bytes(view).decode().rstrip(".") if end is Got.WHOLE else end for view, end in zip(views, ends, strict=True)
    ]


def test_what_was_put_is_found_and_whole(open_store: Open) -> None:
    store = open_store("one")
    assert put(store, a="alpha", b="beta") == [Put.STORED, Put.STORED]
    assert list(store.contains([b"a", b"x", b"b"])) == [True, False, True]
    assert get(store, "b", "x", "a") == ["beta", Got.MISSING, "alpha"]


def test_a_known_block_is_not_written_again(open_store: Open) -> None:
    store = open_store("one")
    put(store, a="first")
    assert put(store, a="second", b="new") == [Put.KNOWN, Put.STORED]
    assert get(store, "a") == ["first"]


def test_another_engine_of_the_same_layout_shares_and_of_another_does_not(open_store: Open) -> None:
    put(open_store("one"), a="alpha")
    assert get(open_store("one"), "a") == ["alpha"]
    other = open_store("two")
    assert list(other.contains([b"a"])) == [False]
    assert get(other, "a") == [Got.MISSING]


def test_reset_forgets_this_layout_for_everybody_and_no_other(open_store: Open) -> None:
    one, twin, two = open_store("one"), open_store("one"), open_store("two")
    put(one, a="alpha")
    put(two, a="other")
    one.reset()
    assert list(one.contains([b"a"])) == list(twin.contains([b"a"])) == [False]
    assert get(two, "a") == ["other"]
    assert put(one, a="again") == [Put.STORED]
    assert get(twin, "a") == ["again"]


def test_no_keys_are_no_work(open_store: Open) -> None:
    store = open_store("one")
    assert (list(store.contains([])), list(store.get([], [])), list(store.put([], [], []))) == ([], [], [])


def test_keys_are_bytes_of_any_value_and_of_two_lengths(open_store: Open) -> None:
    store = open_store("one")
    keys = [bytes(16), bytes(15) + b"\xff", b"/../../etc/passwd", b"\n\r\x00*?[]^$.|" + bytes(6), bytes(20)]
    views = [_block(str(at)) for at in range(len(keys))]
    assert list(store.put(keys, views, [checksum(view) for view in views])) == [Put.STORED] * len(keys)
    assert list(store.contains(keys)) == [True] * len(keys)
    into = [memoryview(bytearray(SIZE)) for _ in keys]
    assert list(store.get(keys, into)) == [Got.WHOLE] * len(keys)
    assert into == views


def test_threads_may_put_and_get_at_once(open_store: Open) -> None:
    stores = [open_store("one"), open_store("one")]
    problems: list[object] = []

    def work(number: int) -> None:
        store = stores[number % 2]
        for at in range(12):
            put(store, **{f"k{at}": f"text {at}"})
            allowed = (f"text {at}", Got.MISSING)  # missing: known, but still being written by another thread
            problems.extend(found for found in get(store, f"k{at}") if found not in allowed)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert get(stores[0], *(f"k{at}" for at in range(12))) == [f"text {at}" for at in range(12)]


def test_close_may_be_called_twice(open_store: Open) -> None:
    store = open_store("one")
    store.close()
    store.close()
