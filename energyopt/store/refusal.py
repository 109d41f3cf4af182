"""What a database said, as the project's own error."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from energyopt.core.errors import StoreError


def refusal(error: SQLAlchemyError, name: str) -> StoreError:
    """One sentence that names the database and the first line of its reason, without SQL or parameters."""
    source = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(source).strip().splitlines()
    reason = lines[0].strip().rstrip(".") if lines else type(source).__name__
    return StoreError(f"The database {name} refused: {reason}.")
