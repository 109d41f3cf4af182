"""Builds the native kernels with the machine's own C++ compiler, once, and keeps them in the user's cache folder.

A library's name is a digest of sources, options, compiler and machine type, so that another version or another
compiler never meets an old file. The folder must be the user's own: whoever can write there can run code here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .instructions import VARIANTS, Variant

COMPILERS = ("c++", "g++", "clang++")
INSTALL = "install a C++ compiler, such as Debian's g++, or set CXX"
_FLAGS = ("-std=c++20", "-O2", "-ftree-vectorize", "-fPIC", "-shared", "-pthread", "-fno-math-errno")
_MORE = ("-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi", "-w")
PATIENCE = 600.0
"""Seconds that a compiler may take; 10 are usual."""
SHIPPED = Path(__file__).parent / "built"
"""Libraries that were compiled when this was installed, if any: then no compiler is needed."""


class NoCompilerError(Exception):
    """The native kernels cannot be built or loaded here; the message says why and what would help."""


class CompilerMissingError(NoCompilerError):
    """There is no compiler at all."""


def sources() -> tuple[Path, ...]:
    """The C++ files that the package ships, in a fixed order."""
    folder = Path(__file__).parent
    return tuple(sorted([*folder.glob("*.h"), *folder.glob("*.cpp")]))


def find_compiler(environment: Mapping[str, str] = os.environ) -> str:
    """The compiler of ``CXX``, or the first of those that are usual. Raises CompilerMissingError."""
    named = environment.get("CXX", "").strip()
    for name in (named,) if named else COMPILERS:
        found = shutil.which(name, path=environment.get("PATH"))
        if found:
            return found
    looked = f"CXX = {named!r} is not a program" if named else f"none of {', '.join(COMPILERS)} is here"
    raise CompilerMissingError(f"No C++ compiler: {looked}; {INSTALL}.")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where built libraries are kept: ``energyopt/native`` in the user's cache folder. Raises NoCompilerError."""
    base = environment.get("XDG_CACHE_HOME", "")
    try:
        home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise NoCompilerError(f"There is no folder for the native kernels: {error}; set XDG_CACHE_HOME.") from error
    return home / "energyopt" / "native"


def built(variant: Variant, folder: Path | None = None, shipped: Path = SHIPPED) -> Path:
    """The shared library of ``variant``: the one that came with the installation, or one that is compiled if it is
    not in ``folder`` yet. Raises NoCompilerError."""
    with _kept():
        ready = _shipped_path(variant, shipped)
        if ready.is_file() and not _open_to(ready, (0, os.geteuid())):
            return ready
        compiler = find_compiler()
        folder = _own(cache_folder() if folder is None else folder)
        path = folder / f"{variant.name}-{_digest(variant, _identity(compiler))}.so"
        if not (path.is_file() and not _open_to(path, (os.geteuid(),))):
            _compile(compiler, variant, path)
    return path


def ship(folder: Path = SHIPPED) -> list[Path]:
    """Compile every variant of this machine's kind into the installation itself, for images that have no compiler
    later. Raises NoCompilerError."""
    mine = [one for one in VARIANTS if not one.needs or platform.machine() in ("x86_64", "AMD64")]
    paths = [_shipped_path(variant, folder) for variant in mine]
    with _kept():
        compiler = find_compiler()
        folder.mkdir(mode=0o755, exist_ok=True)
        for variant, path in zip(mine, paths, strict=True):
            _compile(compiler, variant, path)
            path.chmod(0o755)
    return paths


@contextmanager
def _kept() -> Iterator[None]:
    """A folder that takes nothing is a reason to do without native kernels."""
    try:
        yield
    except OSError as error:
        raise NoCompilerError(f"The native kernels cannot be kept: {error.filename}: {error.strerror}.") from error


def _shipped_path(variant: Variant, folder: Path) -> Path:
    return folder / f"{variant.name}-{_digest(variant)}.so"


def _digest(variant: Variant, compiler: object = None) -> str:
    digest = hashlib.sha256(repr((_FLAGS, _MORE, variant.flags, platform.machine(), compiler)).encode())
    for source in sources():
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _identity(compiler: str) -> tuple[str, int, int]:
    """The file that a compiler is, without running it."""
    real = Path(compiler).resolve()
    found = real.stat()
    return str(real), found.st_size, found.st_mtime_ns


def _own(folder: Path) -> Path:
    """``folder`` with its links followed, made if need be. Raises NoCompilerError if others could write there, or put
    another folder in its place."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    real, me = folder.resolve(strict=True), os.geteuid()
    if why := _open_to(real, (me,)):
        raise NoCompilerError(f"{real} {why}, so nothing is loaded from it: make it yours alone (chmod 700).")
    for parent in real.parents:
        why = _open_to(parent, (0, me))
        if why and not (parent.stat().st_uid == 0 and parent.stat().st_mode & stat.S_ISVTX):  # /tmp: names stay theirs
            raise NoCompilerError(f"{real} is not loaded from, since {parent} above it {why}; set XDG_CACHE_HOME.")
    return real


def _open_to(path: Path, owners: tuple[int, ...]) -> str | None:
    """How others than ``owners`` could change what is at ``path``; None if they cannot."""
    found = path.stat()
    if found.st_uid not in owners:
        return f"belongs to user {found.st_uid}"
    return "may be written by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def _compile(compiler: str, variant: Variant, path: Path) -> None:
    """Into a file of its own, then renamed: two processes that build at once both end with a whole library."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    os.close(handle)
    source = Path(__file__).parent / "native.cpp"
    try:
        status, said = _run([compiler, *_FLAGS, *_MORE, *variant.flags, str(source), "-o", name])
        if status:
            last = (said.strip().splitlines() or ["no message"])[-1]
            raise NoCompilerError(f"{compiler} failed on the native kernels ({variant.name}): {last[:300]}")
        os.chmod(name, 0o700)
        os.replace(name, path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompilerError(f"{compiler} could not build the native kernels: {error}.") from error
    finally:
        Path(name).unlink(missing_ok=True)


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status and messages of a compiler, which starts programs of its own: past ``PATIENCE`` all of them end.

    Raises OSError or TimeoutExpired.
    """
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **options) as process:
        try:
            _, said = process.communicate(timeout=PATIENCE)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said
