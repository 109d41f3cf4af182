"""Transactions, and what a database refused as the project's own error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from energyopt.core.errors import StoreError


def refusal(error: SQLAlchemyError, name: str) -> StoreError:
    """One sentence that names the database and the first line of its reason, without SQL or parameters."""
    source = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(source).strip().splitlines()
    reason = lines[0].strip().rstrip(".") if lines else type(source).__name__
    return StoreError(f"The database {name} refused: {reason}.")


@contextmanager
def session_on(
    engine: Engine, name: str, *, passing: tuple[type[SQLAlchemyError], ...] = (), expire_on_commit: bool = True
) -> Iterator[Session]:
    """One transaction. What the database refuses is a StoreError, but for the kinds in ``passing``."""
    try:
        with Session(engine, expire_on_commit=expire_on_commit) as session, session.begin():
            yield session
    except passing:
        raise
    except SQLAlchemyError as error:
        raise refusal(error, name) from error
