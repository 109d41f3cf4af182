"""Settings of a router from a file and from options, and the command as a whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from api.router.settings import BackendConfig
from energyopt.compose.router import RouterRequest, notices, router_settings
from energyopt.core.config import parse_config
from energyopt.core.errors import ConfigError

COMMAND = "from energyopt.cli.main import main; import sys; main()"
LIGHT = "import sys, energyopt.cli.router; sys.exit('torch' in sys.modules)"


def test_options_come_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(
        "policy: session\nretries: 5\nbackends:\n- url: http://a:1/v1\n  name: first\n  api_key: k\n- url: https://b\n"
    )
    alone = router_settings(file, (), {"policy": None})
    assert [(one.name, one.url, one.api_key) for one in alone.backends] == [
        ("first", "http://a:1", "k"),
        ("b", "https://b", None),
    ]
    both = router_settings(file, ["http://c:3/"], {"policy": "prefix", "seed": None})
    assert (both.policy, both.retries, [one.name for one in both.backends]) == ("prefix", 5, ["c:3"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "No backend is named"),
        ("backends: [{url: ftp://x}]", "an address such as http://host:8000"),
        ("backends: [{url: 'http://u:p@x'}]", "scheme, host, port and path alone"),
        ("backends: [{url: 'http://x:99999'}]", "an address such as"),
        ("backends: [{url: http://x}, {url: http://x}]", "holds x twice"),
        ("backends: [{url: http://x}]\npolicy: best", "policy = 'best'"),
        ("backends: [{url: http://x}]\ncolour: red", "Unknown key 'colour'"),
        ("- 1", "holds no settings"),
        ("backends: [{url: http://x}]\nseed: 99999999999999999999", "seed = 99999999999999999999"),
        ("a: [", "is no YAML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        router_settings(file, (), {})
    assert said in str(refused.value)


def test_an_address_in_brackets_is_a_name_too() -> None:
    """Without one of its own, an engine is called by its host and port, which begin so for IPv6."""
    (backend,) = router_settings(None, ["http://[::1]:8000"], {}).backends
    assert (backend.name, backend.url) == ("[::1]:8000", "http://[::1]:8000")


def test_a_missing_or_huge_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        router_settings(tmp_path / "none.yaml", (), {})
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        router_settings(tmp_path / "big.yaml", (), {})


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(BackendConfig(url="http://x", api_key="secret"))


def test_what_may_not_have_been_meant_is_said() -> None:
    asked: Mapping[str, object] = {
        "host": "0.0.0.0",
        "router": {"joules_weight": 1, "backends": [{"url": "https://x", "verify": False}]},
    }
    said = notices(parse_config(RouterRequest, asked))
    assert [any(word in line for line in said) for word in ("joules_per_token", "without a key", "not verified")] == [
        True,
        True,
        True,
    ]


def test_the_command_serves_says_where_and_ends_on_a_signal() -> None:
    options = ["--backend", "http://127.0.0.1:9", "--policy", "session", "--port", "0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, "router", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            document = "".join(iter(child.stdout.readline, "}\n")) + "}"
            state = json.loads(document)
            assert (state["policy"], state["backends"]) == ("session", ["http://127.0.0.1:9"])
            reply = httpx.post(f"{state['url']}/v1/completions", json={}, trust_env=False, timeout=20)
            assert reply.status_code in (502, 503)
            assert httpx.get(f"{state['url']}/router/backends", trust_env=False).json()["backends"][0]["running"] == 0
        finally:
            child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=20)
    assert child.returncode == 0
    assert "session routing to 1 backend on http://127.0.0.1:" in said
    assert said.rstrip().endswith("stopped")
    assert "Traceback" not in said


def test_the_command_needs_no_torch() -> None:
    assert subprocess.run([sys.executable, "-P", "-c", LIGHT], check=False, timeout=60).returncode == 0
