"""Who may cap what: the helper's configuration, and the identity that the kernel vouches for.

The file is TOML. Root may do everything; every other user needs an entry that names them::

    longest = "24h"            # no lease lives longer without being renewed
    [[allow]]
    users = ["llm", 1001]      # names or ids
    devices = ["*"]            # or UUIDs and PCI addresses
    lowest_cap = "200W"        # optional: no cap below it
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from energyopt.core.config import Config, PowerConfig, parse_config
from energyopt.core.errors import ConfigError, ControlError
from energyopt.core.units import Seconds, Watts, parse_seconds, parse_watts

CONFIG = Path("/etc/energyopt/power.toml")
MAX_CONFIG = 65_536
ANY = "*"


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a socket, as the kernel saw it when it connected."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> Peer:
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return cls(pid, uid)

    @property
    def user(self) -> str:
        return user_name(self.uid)


class Allowance(Config):
    """One entry: these users may hold these devices, at no lower cap than ``lowest_cap``."""

    users: tuple[str | int, ...] = Field(min_length=1)
    devices: tuple[str, ...] = (ANY,)
    lowest_cap: Watts | None = None

    @field_validator("lowest_cap", mode="before")
    @classmethod
    def _watts(cls, value: object) -> object:
        return parse_watts(value) if isinstance(value, str) else value

    def names(self, uid: int) -> bool:
        return uid in self.users or user_name(uid) in self.users

    def covers(self, device: str) -> bool:
        return ANY in self.devices or device in self.devices


class Access(Config):
    """The allow-list. Without entries only root may change anything."""

    allow: tuple[Allowance, ...] = ()
    longest: Seconds = Field(Seconds(86_400.0), gt=0)

    @field_validator("longest", mode="before")
    @classmethod
    def _seconds(cls, value: object) -> object:
        return parse_seconds(value) if isinstance(value, str) else value

    def knows(self, peer: Peer) -> bool:
        """Whether the peer may ask at all."""
        return peer.uid in (0, os.geteuid()) or any(entry.names(peer.uid) for entry in self.allow)

    def check(self, peer: Peer, device: str, power: PowerConfig) -> None:
        """Raises ControlError if the peer may not put ``device`` under ``power``, saying what would help."""
        entries = self._entries(peer, device)
        floors = [entry.lowest_cap for entry in entries]
        if power.cap is None or not floors or None in floors:
            return
        lowest = min(floor for floor in floors if floor is not None)
        if power.cap < lowest:
            raise ControlError(f"{peer.user} may cap {device} at {lowest:g} W or above, not at {power.cap:g} W.")

    def check_device(self, peer: Peer, device: str) -> None:
        """Raises ControlError if the peer may not touch ``device`` at all."""
        self._entries(peer, device)

    def _entries(self, peer: Peer, device: str) -> list[Allowance]:
        """What allows it; nothing needs to for root."""
        if peer.uid in (0, os.geteuid()):
            return []
        entries = [entry for entry in self.allow if entry.names(peer.uid) and entry.covers(device)]
        if not entries:
            raise ControlError(
                f"{peer.user} may not change limits of {device}: an administrator can add the user and the device to "
                f"{CONFIG} and run `systemctl reload energyopt-power-helper`."
            )
        return entries


def load_access(path: Path) -> Access:
    """The configuration; an absent file allows root only.

    Raises ConfigError for one that is wrong, and for one that others than root and ourselves could have written.
    """
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(f"{path} must belong to root and be writable by nobody else: chmod 644 {path}.")
            data = file.read(MAX_CONFIG + 1)
    except FileNotFoundError:
        return Access()
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error}.") from error
    if len(data) > MAX_CONFIG:
        raise ConfigError(f"{path} is longer than {MAX_CONFIG} bytes.")
    try:
        return parse_config(Access, tomllib.loads(data.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not valid: {error}.") from error


def user_name(uid: int) -> str:
    """The name of a user, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
