"""Requests made from our own API description: none may break the server."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from served import markov, serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
MODES = schemathesis.GenerationMode


def test_no_request_of_the_description_breaks_the_server() -> None:
    with serving(markov()) as server:
        schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) == 10
        for operation in operations:
            check(server.url, operation, MODES.POSITIVE)
            if operation.method == "post":  # the others have nothing that could be wrong
                check(server.url, operation, MODES.NEGATIVE)
        assert server.settled()


def check(url: str, operation: Any, mode: schemathesis.GenerationMode) -> None:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def conforms(case: Any) -> None:
        case.call_and_validate(base_url=url, checks=CHECKS)

    conforms()
