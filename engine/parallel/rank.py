"""One rank's life: told its place, it loads its part of the model, then computes its share of every step in order."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import sys
from pathlib import Path

import torch

from energyopt.core.clock import MonotonicClock
from energyopt.core.config import parse_config
from energyopt.core.errors import EngineError

from ..batch import CacheShape
from ..inputs import StepInputs
from ..models import choose_device, load_model
from ..runner import TorchRunner, cache_shape, device_identity
from .copies import Copies
from .fabric import GroupTransport, Joined, Setup, SharedTransport, float_slots
from .groups import pack_groups
from .guard import Inherited
from .link import SharedLink
from .memory import SharedMemory
from .message import unpack_inputs
from .wire import Kind, pack, pack_error, receive, send, unpack

logger = logging.getLogger(__name__)

RESULT = struct.Struct("<q")
"""Of a RESULT: how many rows of logits stand in the step's slot."""


def main(inherited: Inherited) -> None:
    """The process's whole work; what ends it early is told to the engine, then it exits with 1."""
    with socket.socket(fileno=inherited.socket_fd) as channel:
        try:
            serve(channel, inherited.memory)
        except BaseException as error:
            # The border of the process, KeyboardInterrupt included: the engine hears the cause if it still listens.
            logger.debug("the cause in full", exc_info=error)
            with contextlib.suppress(EngineError):
                send(channel, Kind.ERROR, pack_error(error))
            sys.exit(1)


def serve(channel: socket.socket, memory: SharedMemory) -> None:
    """Until told to close. Raises what loading and computing raise, EngineError if the engine is gone."""
    kind, body = receive(channel)
    if kind is not Kind.SETUP:
        raise EngineError(f"A rank begins with its setup, not with {kind.name}.")
    rank = Rank(parse_config(Setup, unpack(body)), memory)
    send(channel, Kind.READY, pack(rank.offer()))
    while True:
        kind, body = receive(channel)
        if kind is Kind.CLOSE:
            return
        if kind is Kind.POOL:
            rank.allocate(int(unpack(body)["blocks"]))
            send(channel, Kind.READY, pack({}))
        elif kind is Kind.STEP:
            rows = rank.step(unpack_inputs(body))
            if rows is not None:
                send(channel, Kind.RESULT, RESULT.pack(rows))
        elif kind is Kind.READ:
            rank.copies.read(body)
        elif kind is Kind.WRITE:
            rank.copies.write(body)
        else:
            raise EngineError(f"A rank does not take {kind.name}.")


class Rank:
    """A part of the model with its part of the KV pool."""

    def __init__(self, setup: Setup, memory: SharedMemory) -> None:
        device = choose_device(setup.config.device)
        if device.type == "cuda":
            device = torch.device("cuda", setup.rank)
        shared = setup.backend == "shared"
        self._setup = setup
        self._joined = Joined(
            setup,
            SharedTransport(memory, setup.rank) if shared else GroupTransport(Path(setup.folder), setup.rank, device),
        )
        self._loaded = load_model(setup.config, self._joined.place, device)
        self._memory = memory
        self._runner: TorchRunner | None = None
        self._copies: Copies | None = None
        self._slots = float_slots(memory, setup.logits, setup.slots)
        self._steps = 0

    def offer(self) -> dict[str, object]:
        """How many blocks this rank has room for, what one takes, and which device it is on."""
        shape = cache_shape(self._loaded, self._setup.config)
        device = device_identity(self._loaded.device)
        return {
            "blocks": shape.num_blocks,
            "bytes_per_block": shape.bytes_per_block,
            "block_tokens": shape.block_tokens,
            "groups": pack_groups(shape.groups),
            "device": device,
        }

    def allocate(self, blocks: int) -> None:
        """Take the pool that all ranks have room for."""
        own, config = cache_shape(self._loaded, self._setup.config), self._setup.config
        shape = CacheShape(blocks, own.block_tokens, own.bytes_per_block, own.groups)
        self._runner = TorchRunner(self._loaded, config, MonotonicClock(), shape)
        links = (SharedLink(self._memory, self._setup.inward), SharedLink(self._memory, self._setup.outward))
        self._copies = Copies(self._runner.pool, *links, self._runner.copy_blocks)

    @property
    def copies(self) -> Copies:
        """Of blocks of its pool, once it has one."""
        if self._copies is None:
            raise EngineError("A rank has no KV pool yet.")
        return self._copies

    def step(self, inputs: StepInputs) -> int | None:
        """This rank's share of a step; the number of rows of logits if it speaks for its replica."""
        runner, joined = self._runner, self._joined
        if runner is None:
            raise EngineError("A rank has no KV pool yet.")
        hidden = None if joined.before is None else joined.before.receive(self._loaded.model.activations)
        hidden = runner.stage(inputs, hidden)
        if joined.behind is not None:
            joined.behind.send(hidden)
            return None
        logits = runner.head(inputs, hidden)
        slot = self._slots[self._steps % len(self._slots)]
        self._steps += 1
        if not self._setup.speaks:
            return None
        slot[: logits.numel()].view(logits.shape).copy_(logits)
        return len(logits)
