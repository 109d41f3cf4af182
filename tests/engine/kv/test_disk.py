"""The disk tier against crashes, damage, hostile files, full disks and its own bound."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from energyopt.core.errors import ConfigError
from engine.kv.block_file import HEADER_BYTES, header, layout_digest, read_block, write_block
from engine.kv.block_store import Got, Put, StoreDownError
from engine.kv.checksum import checksum
from engine.kv.disk import DiskStore

SIZE = 4096
FILE = 8192
"""What one block takes: its header reaches into a second page."""


def _store(folder: Path, blocks: int = 100, layout: str = "layout") -> DiskStore:
    return DiskStore(folder, layout, blocks * FILE, SIZE)


def _put(store: DiskStore, *keys: str) -> list[Put]:
    views = [memoryview(key.encode().ljust(SIZE, b".")) for key in keys]
    return list(store.put([key.encode() for key in keys], views, [checksum(view) for view in views]))


def _get(store: DiskStore, key: str) -> Got:
    view = memoryview(bytearray(SIZE))
    (got,) = store.get([key.encode()], [view])
    assert got is not Got.WHOLE or bytes(view) == key.encode().ljust(SIZE, b".")
    return got


def _file(folder: Path, key: str) -> Path:
    (path,) = folder.glob(f"kv1-*/*/{key.encode().hex()}.kv")
    return path


def test_blocks_survive_a_restart(tmp_path: Path) -> None:
    _put(_store(tmp_path / "kv"), "a", "b")
    again = _store(tmp_path / "kv")
    assert list(again.contains([b"a", b"b", b"c"])) == [True, True, False]
    assert _get(again, "a") is Got.WHOLE


def test_files_are_private(tmp_path: Path) -> None:
    _put(_store(tmp_path / "kv"), "a")
    for path in (tmp_path / "kv", *(tmp_path / "kv").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "damage", ["truncated", "longer", "empty", "directory", "symlink", "fifo", "other key", "other layout"]
)
def test_a_file_that_is_not_right_is_computed_instead_and_removed(tmp_path: Path, damage: str) -> None:
    store = _store(tmp_path)
    _put(store, "a", "b")
    path = _file(tmp_path, "a")
    content = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:-1])
    elif damage == "longer":
        path.write_bytes(content + b"x")
    elif damage == "empty":
        path.touch()
    elif damage == "directory":
        path.mkdir()
    elif damage == "symlink":
        secret = tmp_path / "secret"
        secret.write_bytes(content)
        path.symlink_to(secret)
    elif damage == "fifo":
        os.mkfifo(path)
    elif damage == "other key":
        path.write_bytes(_file(tmp_path, "b").read_bytes())
    else:
        block = memoryview(content)[HEADER_BYTES:]
        path.write_bytes(header(layout_digest("another"), b"a", SIZE, checksum(block)) + block)
    assert _get(store, "a") is Got.CORRUPT
    if damage != "directory":
        assert _put(store, "a") == [Put.STORED]
        assert _get(store, "a") is Got.WHOLE


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, HEADER_BYTES + 200), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path: Path, at: int, bit: int) -> None:
    block = memoryview(b"x" * 201)
    path, layout = tmp_path / "block.kv", layout_digest("layout")
    write_block(path, header(layout, b"key", len(block), checksum(block)), block)
    into = memoryview(bytearray(len(block)))
    assert read_block(path, layout, b"key", into) is Got.WHOLE
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)
    assert read_block(path, layout, b"key", into) is Got.CORRUPT


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_no_content_of_a_file_raises_or_passes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "block.kv"
    path.write_bytes(content)
    assert read_block(path, layout_digest("layout"), b"key", memoryview(bytearray(8))) is Got.CORRUPT


def test_the_folder_stays_below_its_size_and_gives_up_what_was_not_used(tmp_path: Path) -> None:
    store = _store(tmp_path, blocks=20)
    for at in range(20):
        assert _put(store, f"k{at:02d}") == [Put.STORED]
        os.utime(_file(tmp_path, f"k{at:02d}"), (at, at))
    assert _get(store, "k00") is Got.WHOLE  # used: now the youngest
    assert _put(store, "new") == [Put.STORED]
    assert store.evicted() == 3, "one in, three out: a tenth is left free"
    left = [key for key in (f"k{at:02d}" for at in range(20)) if store.contains([key.encode()])[0]]
    assert left == ["k00", *(f"k{at:02d}" for at in range(4, 20))]
    for at in range(60):
        _put(store, f"more{at}")
        assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*.kv")) <= 20 * FILE


def test_two_processes_share_one_bound(tmp_path: Path) -> None:
    one, two = _store(tmp_path, blocks=40), _store(tmp_path, blocks=40)
    for at in range(60):
        _put(one, f"one{at}")
        _put(two, f"two{at}")
        assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*.kv")) <= 1.1 * 40 * FILE
    assert one.evicted() + two.evicted() >= 120 - 44


def test_another_layouts_blocks_count_and_are_given_up_too(tmp_path: Path) -> None:
    _put(_store(tmp_path, blocks=10, layout="old"), *(f"k{at}" for at in range(10)))
    new = _store(tmp_path, blocks=10, layout="new")
    assert _put(new, "a") == [Put.STORED]
    assert new.evicted() > 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_the_block_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = _store(tmp_path)
    _put(store, "a")

    def full(descriptor: int, buffers: object) -> int:
        os.write(descriptor, b"half")
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "writev", full)
    assert _put(store, "b") == [Put.FULL]
    monkeypatch.undo()
    assert list(tmp_path.rglob("*.tmp")) == []
    assert _get(store, "a") is Got.WHOLE
    assert _put(store, "b") == [Put.STORED]


def test_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        store = _store(tmp_path)
        ends = _put(store, *(f"k{at}" for at in range(16)))
        assert ends[0] is Put.STORED
        assert ends[-1] is Put.FULL
        assert [_get(store, f"k{at}") is Got.WHOLE for at in range(16)] == [end is Put.STORED for end in ends]
        assert list(tmp_path.rglob("*.tmp")) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_the_file_system_refuses_is_a_store_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = _store(tmp_path)

    def refuse(descriptor: int, buffers: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "writev", refuse)
    with pytest.raises(StoreDownError, match="Read-only file system"):
        _put(store, "a")


def test_a_folder_that_vanished_is_made_again(tmp_path: Path) -> None:
    store = _store(tmp_path / "kv")
    _put(store, "a")
    (tmp_path / "kv").rename(tmp_path / "gone")
    assert _get(store, "a") is Got.MISSING
    assert _put(store, "a") == [Put.STORED]


def test_folders_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
        _store(tmp_path / "file" / "kv")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigError, match="may be written by everybody"):
        _store(tmp_path / "open")
    with pytest.raises(ConfigError, match="no room: it is 100 bytes"):
        DiskStore(tmp_path / "kv", "layout", 100, SIZE)


def test_leftovers_of_a_process_that_died_are_removed_later(tmp_path: Path) -> None:
    _put(_store(tmp_path), "a")
    old, young = (_file(tmp_path, "a").with_name(name) for name in (".61.1.aa.tmp", ".61.2.bb.tmp"))
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    _store(tmp_path)
    assert not old.exists()
    assert young.exists(), "it may belong to a process that lives"


_WRITER = """
import sys
from pathlib import Path
from engine.kv.checksum import checksum
from engine.kv.disk import DiskStore
store = DiskStore(Path(sys.argv[1]), "layout", 1 << 26, 1 << 16)
print("ready", flush=True)
number = 0
while True:
    block = memoryview(number.to_bytes(8, "little") * (1 << 13))
    store.put([b"%08d" % number], [block], [checksum(block)])
    number += 1
"""


def test_killed_while_writing_leaves_only_whole_blocks(tmp_path: Path) -> None:
    chance = random.Random(3)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.01, 0.1))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    store = DiskStore(tmp_path, "layout", 1 << 26, 1 << 16)
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) > 20
    view = memoryview(bytearray(1 << 16))
    for path in files:
        number = int(bytes.fromhex(path.stem))
        assert list(store.get([b"%08d" % number], [view])) == [Got.WHOLE]
        assert bytes(view) == number.to_bytes(8, "little") * (1 << 13)
