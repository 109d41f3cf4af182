"""Fixtures for whole-program tests: a tiny real model on disk, and a PostgreSQL of our own."""

from __future__ import annotations

import glob
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from sqlalchemy import create_engine, make_url, text
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.mooncake import MooncakePool

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 32, 2, 4, 2, 64, 2048
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _tokenizer() -> Tokenizer:
    """Bytes as tokens, and two markers: every text has ids and every id a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return tokenizer


def _weights(vocabulary: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    head = HIDDEN // HEADS
    weights = {"model.embed_tokens.weight": random(vocabulary, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}self_attn.q_proj.weight": random(HEADS * head, HIDDEN),
            f"{prefix}self_attn.k_proj.weight": random(KV_HEADS * head, HIDDEN),
            f"{prefix}self_attn.v_proj.weight": random(KV_HEADS * head, HIDDEN),
            f"{prefix}self_attn.o_proj.weight": random(HIDDEN, HEADS * head),
            f"{prefix}mlp.gate_proj.weight": random(INNER, HIDDEN),
            f"{prefix}mlp.up_proj.weight": random(INNER, HIDDEN),
            f"{prefix}mlp.down_proj.weight": random(HIDDEN, INNER),
            f"{prefix}input_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}post_attention_layernorm.weight": torch.ones(HIDDEN),
        }
    return weights


@pytest.fixture(scope="session", autouse=True)
def _usual_signals() -> None:
    """A job in the background inherits ignored signals, and so would every program that a test starts."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 30 thousand weights in Hugging Face's layout; it answers nonsense, quickly."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}), encoding="utf-8"
    )
    save_file(_weights(vocabulary), str(folder / "model.safetensors"))
    return folder


class Postgres:
    """Debian's server in ``folder``, on a socket there, without fsync: a machine that fails is not what tests need."""

    def __init__(self, folder: Path) -> None:
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=_release)
        prefix = _as_postgres()
        if not binaries or prefix is None:
            reason = "no PostgreSQL: set ENERGYOPT_TEST_PG_URL or install the package postgresql"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        self._folder, self._data, binary = folder, folder / "data", Path(binaries[-1])
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self._control = [*prefix, str(binary / "pg_ctl"), "-D", str(self._data), "-w"]
        if prefix:
            shutil.chown(folder, "postgres", "postgres")
        initdb = [str(binary / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        _run([*prefix, *initdb, "--locale=C", "--no-sync"], folder)
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"listen_addresses=''\nunix_socket_directories='{folder}'\nfsync=off\n")

    def start(self) -> None:
        _run([*self._control, "-l", str(self._folder / "log"), "start"], self._folder)

    def stop(self) -> None:
        _run([*self._control, "-m", "immediate", "stop"], self._folder)

    def kill(self) -> None:
        """``kill -9`` of the server; its children end when they see that it is gone.

        Its lock files go too, as after a restart of the machine: where nobody reaps the dead server, its process id
        still answers, and the next one would not start.
        """
        lock = self._data / "postmaster.pid"
        os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)
        for left in (lock, self._folder / ".s.PGSQL.5432.lock"):
            left.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server that may create databases: a given one, or one that is started here."""
    given = os.environ.get("ENERGYOPT_TEST_PG_URL")
    if given:
        yield given
        return
    with _postgres() as server:
        yield server.url


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server that nobody else uses, to be killed."""
    with _postgres() as server:
        yield server


@contextmanager
def _postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="energyopt-pg-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def mooncake_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakePool]:
    """A running master. Skips, saying why, where the library or what it links to is not installed."""
    found = subprocess.run([sys.executable, "-c", "import mooncake.store"], check=False, capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"Mooncake Store cannot be loaded: {found.stderr.strip().splitlines()[-1]}")
    pool = MooncakePool(tmp_path_factory.mktemp("mooncake"))
    pool.start()
    yield pool
    pool.kill()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A fresh, empty database."""
    address, name = make_url(postgres_server), f"energyopt_test_{uuid.uuid4().hex}"
    admin = create_engine(address.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield address.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def _release(path: str) -> tuple[int, ...]:
    return tuple(int(part) for part in path.split("/")[-2].split(".") if part.isdigit())


def _as_postgres() -> list[str] | None:
    """What to put before a command so that it does not run as root (the server refuses); None if nothing helps."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        return None
    if shutil.which("runuser"):
        return ["runuser", "-u", "postgres", "--"]
    if shutil.which("setpriv"):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--"]
    return None


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.returncode:
        log = folder / "log"
        pytest.fail(f"{command[-1]}: {done.stdout}{log.read_text() if log.exists() else ''}")
