"""A winner in the forms that deployments are written in: commands, a unit, and manifests of four orchestrators.

One command is built per pool and wrapped; what the command cannot carry stands above it as a comment. Manifests are
built as data and written by a YAML library, so no value can break out of its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError

from .command import LaunchCommand, serve_command, vllm_command
from .names import is_path, published
from .sglang import sglang_command

PORT = 8000
VLLM_IMAGE = "vllm/vllm-openai:latest"
SGLANG_IMAGE = "lmsysorg/sglang:latest"
DYNAMO_IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:latest"
LLMD_IMAGE = "ghcr.io/llm-d/llm-d:latest"
TRANSFER = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'
NAME = "energyopt"


@dataclass(frozen=True, slots=True)
class Form:
    """``render`` makes the text; ``two_pools`` says whether it can express a prefill pool."""

    render: Callable[[Deployment], str]
    media_type: str
    two_pools: bool = False


def render(form: str, deployment: Deployment) -> tuple[str, str]:
    """The text and its media type. Raises ConfigError for an unknown form, or what the form cannot express."""
    known = FORMS.get(form)
    if known is None:
        raise ConfigError(f"{form!r} is no form to export: allowed are {', '.join(FORMS)}.")
    if deployment.prefill is not None and not known.two_pools:
        able = ", ".join(name for name, one in FORMS.items() if one.two_pools)
        raise ConfigError(f"{form} cannot express a prefill pool; {able} can.")
    return known.render(deployment), known.media_type


def _plain(command: Callable[[Deployment], LaunchCommand]) -> Callable[[Deployment], str]:
    def text(deployment: Deployment) -> str:
        found = command(deployment)
        return _commented(found.remarks, found.shell)

    return text


def _systemd(deployment: Deployment) -> str:
    """A unit of our own server: it caps and measures, and systemd ends its whole group."""
    engine = deployment.decode.engine
    words = [*serve_command(deployment).argv, "--port", str(PORT)]
    quoted = " ".join(_unit_word(word) for word in words)
    note = f"The model {engine.model} must lie where the unit's own user may read it, named by its whole path."
    return _commented(
        [note] if is_path(engine.model) else [],
        "\n".join(_unit_lines(engine.model, quoted)),
    )


def _unit_lines(model: str, quoted: str) -> tuple[str, ...]:
    return (
        "[Unit]",
        f"Description=energyopt serving {_unit_text(model)}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Environment=PYTHONSAFEPATH=1",
        f"ExecStart=/usr/bin/env {quoted}",
        "Restart=on-failure",
        "RestartSec=5",
        "TimeoutStopSec=60",
        "KillMode=mixed",
        "DynamicUser=yes",
        "StateDirectory=energyopt",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    )


def _unit_word(word: str) -> str:
    """One word of ExecStart: quoted, with systemd's own signs doubled."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _unit_text(text: str) -> str:
    return " ".join(text.replace("%", "%%").split())


def _compose(deployment: Deployment) -> str:
    """Docker compose: one service a replica's worth of vLLM with its GPUs reserved."""
    command, pool = _vllm_pool(deployment.decode)
    devices = pool.engine.layout.devices
    service = {
        "image": VLLM_IMAGE,
        "command": [*command.argv[2:], "--host", "0.0.0.0", "--port", str(PORT)],
        "ports": [f"{PORT}:{PORT}"],
        "ipc": "host",
        "environment": {"HF_HOME": "/models"},
        "volumes": ["models:/models"],
        "deploy": {
            "replicas": pool.replicas,
            "resources": {
                "reservations": {"devices": [{"driver": "nvidia", "count": devices, "capabilities": ["gpu"]}]}
            },
        },
        "restart": "unless-stopped",
    }
    if pool.replicas > 1:
        service["ports"] = [str(PORT)]  # each replica gets a port of the host's own choice
    return _yaml({"services": {NAME: service}, "volumes": {"models": {}}}, command.remarks)


def _kubernetes(deployment: Deployment) -> str:
    """A Deployment and its Service."""
    command, pool = _vllm_pool(deployment.decode)
    labels = {"app": NAME}
    container = _container("vllm", VLLM_IMAGE, command, pool.engine)
    pods = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {
            "replicas": pool.replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"selector": labels, "ports": [{"port": PORT, "targetPort": PORT}]},
    }
    return _yaml(pods, command.remarks) + "---\n" + _yaml(service)


def _container(name: str, image: str, command: LaunchCommand, engine: EngineConfig) -> dict[str, Any]:
    """A vLLM container that is ready when its server answers, not when its process runs."""
    probe = {"httpGet": {"path": "/health", "port": PORT}}
    return {
        "name": name,
        "image": image,
        "command": ["vllm", "serve"],
        "args": [*command.argv[2:], "--host", "0.0.0.0", "--port", str(PORT)],
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": str(engine.layout.devices)}},
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }


def _dynamo(deployment: Deployment) -> str:
    """A DynamoGraphDeployment: a frontend and one worker a pool; two pools hand their cache over by NIXL."""
    dropped: list[str] = []
    services: dict[str, Any] = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            "extraPodSpec": {"mainContainer": {"image": DYNAMO_IMAGE}},
        }
    }
    for name, pool, role in _pools(deployment):
        command, _ = _vllm_pool(pool)
        dropped += command.remarks
        model, *flags = command.argv[2:]
        words = ["--model", model, *flags]
        if role is not None:
            words += ["--disaggregation-mode", role, "--kv-transfer-config", TRANSFER]
        services[f"Vllm{name}Worker"] = {
            "componentType": "worker",
            **({"subComponentType": role} if role else {}),
            "replicas": pool.replicas,
            "resources": {"limits": {"gpu": str(pool.engine.layout.devices)}},
            "extraPodSpec": {
                "mainContainer": {
                    "image": DYNAMO_IMAGE,
                    "command": ["python3", "-m", "dynamo.vllm"],
                    "args": words,
                }
            },
        }
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": NAME},
        "spec": {"services": services},
    }
    return _yaml(graph, dropped)


def _llmd(deployment: Deployment) -> str:
    """Values of the llm-d-modelservice chart."""
    dropped: list[str] = []
    model = published(deployment.decode.engine.model)[0]
    where = model.lstrip("/") if is_path(model) else model
    values: dict[str, Any] = {
        "modelArtifacts": {
            "uri": f"{'pvc://models' if is_path(model) else 'hf:/'}/{where}",
            "name": deployment.decode.engine.served_model_name or model,
        },
        "prefill": {"create": False},
    }
    for name, pool, role in _pools(deployment):
        command, _ = _vllm_pool(pool)
        dropped += command.remarks
        layout = pool.engine.layout
        words = list(command.argv[3:]) + (["--kv-transfer-config", TRANSFER] if role else [])
        values[name.lower()] = {
            "create": True,
            "replicas": pool.replicas,
            "parallelism": {"tensor": layout.tp, "data": layout.dp},
            "containers": [
                {
                    "name": "vllm",
                    "image": LLMD_IMAGE,
                    "modelCommand": "vllmServe",
                    "args": words,
                    "resources": {"limits": {"nvidia.com/gpu": str(layout.devices)}},
                }
            ],
        }
    return _yaml(values, dropped)


def _pools(deployment: Deployment) -> list[tuple[str, PoolConfig, str | None]]:
    """Name, pool and role; a single pool has no role."""
    if deployment.prefill is None:
        return [("Decode", deployment.decode, None)]
    return [("Prefill", deployment.prefill, "prefill"), ("Decode", deployment.decode, "decode")]


def _vllm_pool(pool: PoolConfig) -> tuple[LaunchCommand, PoolConfig]:
    """The command of one engine of a pool; an orchestrator makes the replicas, and sees to the hand-over of two."""
    alone = pool.engine.model_copy(update={"kv_transfer": None})
    return vllm_command(Deployment(decode=PoolConfig(engine=alone, power=pool.power))), pool


class _Plain(yaml.SafeDumper):
    """Writes every part out: an alias in a manifest is legal and puzzles people."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _yaml(document: Mapping[str, Any], dropped: Sequence[str] = ()) -> str:
    text: str = yaml.dump(dict(document), Dumper=_Plain, sort_keys=False, default_flow_style=False, width=1000)
    return _commented(dropped, text.rstrip("\n"))


def _commented(dropped: Sequence[str], text: str) -> str:
    return "\n".join([*(f"# {' '.join(note.split())}" for note in dict.fromkeys(dropped)), text, ""])


FORMS: Mapping[str, Form] = {
    "energyopt": Form(_plain(serve_command), "text/plain", two_pools=True),
    "vllm": Form(_plain(vllm_command), "text/plain"),
    "sglang": Form(_plain(sglang_command), "text/plain"),
    "compose": Form(_compose, "application/yaml"),
    "systemd": Form(_systemd, "text/plain", two_pools=True),
    "kubernetes": Form(_kubernetes, "application/yaml"),
    "dynamo": Form(_dynamo, "application/yaml", two_pools=True),
    "llm-d": Form(_llmd, "application/yaml", two_pools=True),
}
