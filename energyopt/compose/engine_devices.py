"""Which devices of this host an engine uses that a study launches or reaches: what is metered, limited, waited for.

Loads neither torch nor the engine. GPUs are counted as the engine will count them, by the environment it is given.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from energyopt.core.clock import Clock
from energyopt.core.config import Deployment
from energyopt.core.errors import SensorError, SensorUnavailableError, UsageError
from energyopt.core.study import Space, StudySpec
from telemetry.amd.source import amd_driver_loaded
from telemetry.detect import Detection, detect
from telemetry.nvml import list_gpus
from telemetry.visible import normal_uuid
from tuner.evaluators.choice import EvaluatorChoice
from tuner.space import SearchSpace

from .caps import machine_gpus

CPU = ("cpu:0",)
_SHAPE = ("layout", "replicas")
"""Parts of a knob's path that decide how many devices a deployment occupies."""


def on_this_host(url: str) -> bool:
    """Whether the server at ``url`` runs where this process does: its address is one that only this host can take.

    A name that does not resolve is elsewhere. A tunnel from a local port to another host looks like this host.
    """
    name = urlsplit(url).hostname or ""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_own(address) for address in found)


def _own(address: str) -> bool:
    bare = ipaddress.ip_address(address.partition("%")[0])
    if bare.is_loopback or bare.is_unspecified:
        return True
    family = socket.AF_INET6 if bare.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def elsewhere(choice: EvaluatorChoice) -> bool:
    """Whether the engine is a server on another host: nothing of this host measures or limits it."""
    return choice.kind == "endpoint" and not on_this_host(choice.url or "")


def environment_of(choice: EvaluatorChoice) -> dict[str, str]:
    """What a launched engine finds in its environment: ours, and what the study adds."""
    return {**os.environ, **dict(word.split("=", 1) for word in choice.environment)}


def used_devices(choice: EvaluatorChoice, deployment: Deployment) -> tuple[str, ...]:
    """The devices of one deployment: those that the study names, else the first GPUs that the engine sees, one a rank.

    A running server does not say which GPUs are its own, so every one of this host counts unless the study names them;
    () for a server on another host. Without a GPU, or for an engine told to use none, it is the CPU.

    Raises SensorUnavailableError where every GPU would count and their driver tells of none.
    """
    if elsewhere(choice):
        return ()
    count = deployment.devices
    if choice.devices:
        named = tuple(map(normal_uuid, choice.devices))
        return named if choice.kind == "endpoint" else named[:count]
    if deployment.decode.engine.device == "cpu" or not _has_gpus() or _told_cpu(choice):
        return CPU
    return _all_gpus() if choice.kind == "endpoint" else tuple(f"cuda:{rank}" for rank in range(count))


def _all_gpus() -> tuple[str, ...]:
    try:
        return machine_gpus(())
    except UsageError as error:
        raise SensorUnavailableError(f"A driver of GPUs is loaded, but tells of none. {error}") from error


def find_used(choice: EvaluatorChoice, deployment: Deployment, kind: str, clock: Clock) -> Detection:
    """The sensors of those devices. "auto" never fails; another kind raises ConfigError, SensorUnavailableError."""
    try:
        devices = used_devices(choice, deployment)
    except SensorUnavailableError as error:
        if kind not in ("auto", "none"):
            raise
        return Detection((), (f"GPU energy is not measured. {error}",))
    if not devices:
        return Detection((), (f"{choice.url} is on another host, which this one cannot measure: give energy_url.",))
    found = detect(kind, devices, clock, environment=environment_of(choice))
    if choice.kind != "endpoint" or choice.devices or len(devices) < 2:
        return found
    note = f"All {len(devices)} GPUs of this host count: name those of the server as devices."
    return Detection(found.sources, (*found.reasons, note), found.statuses, found.names)


def identities(choice: EvaluatorChoice, deployment: Deployment, clock: Clock) -> tuple[str, ...]:
    """The same devices as drivers name them, for limits. Raises SensorUnavailableError where one is not found."""
    devices = used_devices(choice, deployment)
    if not any(device.startswith("cuda:") for device in devices):
        return devices
    found = find_used(choice, deployment, "auto", clock)
    for source in found.sources:
        source.close()
    for status in found.statuses:
        status.close()
    lost = [device for device in devices if device not in found.names]
    if lost:
        raise SensorUnavailableError(f"{lost[0]} cannot be told apart from other GPUs. {' '.join(found.reasons)}")
    return tuple(dict.fromkeys(found.names[device] for device in devices))


def largest(spec: StudySpec) -> Deployment:
    """A deployment of the study that occupies the most devices: what it limits has to cover them all."""
    shape = [knob for knob in spec.space.knobs if set(knob.path.split(".")) & set(_SHAPE)]
    plain = Space(knobs=tuple(knob.model_copy(update={"when": {}}) for knob in shape))
    space = SearchSpace(plain, spec.baseline)
    return max(map(space.apply, space.plan.points), key=lambda deployment: deployment.devices)


def _told_cpu(choice: EvaluatorChoice) -> bool:
    """vLLM's own variable for a build that computes on the CPU."""
    return environment_of(choice).get("VLLM_TARGET_DEVICE", "").lower() == "cpu"


def _has_gpus() -> bool:
    with suppress(SensorUnavailableError, SensorError):
        if list_gpus():
            return True
    return amd_driver_loaded()
