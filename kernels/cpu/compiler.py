"""Builds the native kernels with the machine's own C++ compiler, once, and keeps them in the user's cache folder.

A library's name is a digest of sources, options, compiler and machine type, so that another version or another
compiler never meets an old file. The folder must be the user's own: whoever can write there can run code here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .instructions import Variant

COMPILERS = ("c++", "g++", "clang++")
INSTALL = "install a C++ compiler, such as Debian's g++, or set CXX"
_FLAGS = ("-std=c++20", "-O2", "-ftree-vectorize", "-fPIC", "-shared", "-pthread", "-fno-math-errno")
_MORE = ("-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi", "-w")
_PATIENCE = 600.0
"""Seconds that a compiler may take; 10 are usual."""


class NoCompilerError(Exception):
    """The native kernels cannot be built here; the message says why and what would help."""


def sources() -> tuple[Path, ...]:
    """The C++ files that the package ships, in a fixed order."""
    folder = Path(__file__).parent
    return tuple(sorted([*folder.glob("*.h"), *folder.glob("*.cpp")]))


def find_compiler(environment: Mapping[str, str] = os.environ) -> str:
    """The compiler of ``CXX``, or the first of those that are usual. Raises NoCompilerError."""
    named = environment.get("CXX", "").strip()
    for name in (named,) if named else COMPILERS:
        found = shutil.which(name, path=environment.get("PATH"))
        if found:
            return found
    looked = f"CXX = {named!r} is not a program" if named else f"none of {', '.join(COMPILERS)} is here"
    raise NoCompilerError(f"No C++ compiler: {looked}; {INSTALL}.")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where built libraries are kept: ``energyopt/native`` in the user's cache folder."""
    base = environment.get("XDG_CACHE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return home / "energyopt" / "native"


def built(variant: Variant, folder: Path | None = None) -> Path:
    """The shared library of ``variant``, compiled if it is not there yet. Raises NoCompilerError."""
    compiler = find_compiler()
    folder = _own(cache_folder() if folder is None else folder)
    path = folder / f"{variant.name}-{_digest(compiler, variant)}.so"
    if not (path.is_file() and _is_mine(path)):
        _compile(compiler, variant, path)
    return path


def _digest(compiler: str, variant: Variant) -> str:
    digest = hashlib.sha256(repr((_FLAGS, _MORE, variant.flags, platform.machine(), _identity(compiler))).encode())
    for source in sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _identity(compiler: str) -> tuple[str, int, int]:
    """The file that a compiler is, without running it."""
    real = Path(compiler).resolve()
    found = real.stat()
    return str(real), found.st_size, found.st_mtime_ns


def _own(folder: Path) -> Path:
    """``folder``, made if need be. Raises NoCompilerError if others could write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_mine(folder):
            raise NoCompilerError(f"{folder} may be written by others, so nothing is loaded from it: make it yours.")
    except OSError as error:
        raise NoCompilerError(f"{folder} cannot hold the native kernels: {error.strerror}.") from error
    return folder


def _is_mine(path: Path) -> bool:
    found = path.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _compile(compiler: str, variant: Variant, path: Path) -> None:
    """Into a file of its own, then renamed: two processes that build at once both end with a whole library."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    os.close(handle)
    source = Path(__file__).parent / "native.cpp"
    command = [compiler, *_FLAGS, *_MORE, *variant.flags, str(source), "-o", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise NoCompilerError(f"{compiler} failed on the native kernels ({variant.name}): {last[:300]}")
        os.chmod(name, 0o700)
        os.replace(name, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompilerError(f"{compiler} could not build the native kernels: {error}.") from error
    finally:
        Path(name).unlink(missing_ok=True)
