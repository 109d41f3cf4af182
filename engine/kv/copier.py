"""The copies themselves: between device, host memory and stores, in chunks, each on the thread it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from energyopt.core.clock import Clock

from .buffers import Buffer, Staging
from .checksum import checksum
from .host import HostBlock, HostTier
from .lane import LOAD, STORE, Job, Lane
from .ports import BlockMover, Transfer
from .store_tier import StoreTier
from .ticket import Ticket

logger = logging.getLogger(__name__)

CHUNK = 8
"""Blocks a job copies: so long may a load wait for a store, and so soon follows a read the first write."""

_STAGING_PATIENCE = 5.0
"""Seconds that a load waits for a staging buffer."""

Wanted = tuple[Transfer, Buffer, tuple[StoreTier, ...]]


class Copier:
    """Owns the thread that touches the device. Every part that it is handed ends its ticket's part, once."""

    def __init__(
        self,
        mover: BlockMover,
        host: HostTier | None,
        staging: Staging,
        clock: Clock,
    ) -> None:
        self._mover = mover
        self._host = host
        self._staging = staging
        self._clock = clock
        self._device = Lane("kv-device")

    def write_held(self, ticket: Ticket, parts: Sequence[Sequence[Transfer]], blocks: Sequence[HostBlock]) -> None:
        """Blocks of the host tier to the device, part by part; each is released at the end."""

        def feed() -> None:
            at = 0
            for part in parts:
                self._write_part(ticket, part, blocks[at : at + len(part)])
                at += len(part)

        if len(parts) == 1 or not self._device.submit(feed, LOAD):
            feed()

    def fetch_and_write(self, ticket: Ticket, parts: Sequence[Sequence[Transfer]], store: StoreTier) -> None:
        """Blocks of a store to the device, part by part, by way of the host tier or a staging buffer."""

        def feed() -> None:
            for part in parts:
                self._fetch_part(ticket, part, store)

        if len(parts) == 1 or not store.load(feed):
            feed()

    def _write_part(self, ticket: Ticket, part: Sequence[Transfer], blocks: Sequence[HostBlock]) -> None:
        def job() -> None:
            good, start = False, self._clock.now()
            try:
                good = self._verified(blocks) and self._write(ticket, part, blocks)
            finally:
                self._count_load(blocks if good else (), start)
                _release(blocks)
                ticket.part_ended(good)

        self._submit(job, LOAD, ticket, blocks)

    def _fetch_part(self, ticket: Ticket, part: Sequence[Transfer], store: StoreTier) -> None:
        def job() -> None:
            buffers: list[Buffer] = []
            try:
                if ticket.live:
                    buffers = self._buffers(part)
                good = len(buffers) == len(part) and self._fetch(store, part, buffers)
            except BaseException:
                _release(buffers)
                ticket.part_ended(False)
                raise
            if good:
                self._submit(lambda: self._finish(ticket, part, buffers), LOAD, ticket, buffers)
            else:
                _release(buffers)
                ticket.part_ended(False)

        if not store.load(job):
            ticket.part_ended(False)

    def read(self, ticket: Ticket, part: Sequence[Wanted]) -> None:
        """Device blocks to host memory, the last of a chain first, so that it is older; then to the stores."""
        buffers = [buffer for _, buffer, _ in part]

        def job() -> None:
            start = self._clock.now()
            try:
                self._mover.read([transfer.slot for transfer, _, _ in part], [buffer.view for buffer in buffers])
                for buffer in reversed(buffers):
                    buffer.filled(checksum(buffer.view))
                for transfer, buffer, stores in part:
                    for store in stores:
                        store.save(transfer.key, buffer)
                self._count_store(buffers, start)
            finally:
                _release(buffers)
                ticket.part_ended(True)

        self._submit(job, STORE, ticket, buffers)

    def close(self, timeout: float) -> None:
        """Copy what is queued, then end."""
        if not self._device.close(timeout):
            logger.warning("KV copies did not come to an end within %g s.", timeout)

    def _finish(self, ticket: Ticket, part: Sequence[Transfer], buffers: Sequence[Buffer]) -> None:
        good = False
        try:
            good = self._write(ticket, part, buffers)
        finally:
            _release(buffers)
            ticket.part_ended(good)

    def _submit(self, job: Job, urgency: int, ticket: Ticket, buffers: Sequence[Buffer]) -> None:
        """Queue a device job; after ``close`` its part fails at once."""
        if not self._device.submit(job, urgency):
            _release(buffers)
            ticket.part_ended(False)

    def _write(self, ticket: Ticket, part: Sequence[Transfer], blocks: Sequence[Buffer]) -> bool:
        with ticket.writing() as wanted:
            if wanted:
                self._mover.write([transfer.slot for transfer in part], [block.view for block in blocks])
        return wanted

    def _verified(self, blocks: Sequence[HostBlock]) -> bool:
        """Whether all are as they were stored; one that is not leaves the tier."""
        bad = [block for block in blocks if checksum(block.view) != block.checksum]
        if bad and self._host is not None:
            for block in bad:
                self._host.drop(block)
            self._host.counter.failed("corrupt", len(bad))
            logger.warning("KV tier host: %d blocks changed in memory; computing them.", len(bad))
        return not bad

    def _buffers(self, part: Sequence[Transfer]) -> list[Buffer]:
        """A buffer for each block, fewer if none comes free."""
        buffers: list[Buffer] = []
        for transfer in part:
            slot: Buffer | None = self._host.reserve(transfer.key) if self._host else None
            buffer = slot or self._staging.take(_STAGING_PATIENCE)
            if buffer is None:
                break
            buffers.append(buffer)
        return buffers

    def _fetch(self, store: StoreTier, part: Sequence[Transfer], buffers: Sequence[Buffer]) -> bool:
        arrived = store.fetch([transfer.key for transfer in part], [buffer.view for buffer in buffers])
        for buffer, whole in zip(buffers, arrived, strict=True):
            if whole:
                buffer.filled(checksum(buffer.view))
        return all(arrived)

    def _count_load(self, blocks: Sequence[HostBlock], start: float) -> None:
        if self._host is not None:
            size = sum(len(block.view) for block in blocks)
            self._host.counter.loaded(len(blocks), size, self._clock.now() - start)

    def _count_store(self, buffers: Sequence[Buffer], start: float) -> None:
        kept = [buffer for buffer in buffers if isinstance(buffer, HostBlock)]
        if self._host is not None and kept:
            size = sum(len(buffer.view) for buffer in kept)
            self._host.counter.stored(len(kept), size, self._clock.now() - start)


def _release(buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        buffer.release()
