"""Problems have a type of their own wherever the service itself refuses."""

from __future__ import annotations

from api.errors import BodyTooSlowError
from api.jobs.problems import problem_of


def test_a_slow_body_is_named() -> None:
    found = problem_of(BodyTooSlowError("The body did not come in time."))
    assert found.document == {
        "type": "urn:energyopt:problem:body-too-slow",
        "title": "body too slow",
        "status": 408,
        "detail": "The body did not come in time.",
    }
