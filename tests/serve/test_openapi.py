"""The OpenAPI document is true: schemathesis asks what it describes, and more, and every answer is one it describes."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.serve.live import Live

NAME = "gated_deltanet:nano"

ROUTES = {
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/{model}"),
    ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/health"), ("GET", "/metrics"), ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions"), ("GET", "/v1/sessions/{name}"), ("DELETE", "/v1/sessions/{name}"),
    ("POST", "/v1/sessions/{name}/restore"), ("POST", "/v1/sessions/{name}/fork"),
}  # fmt: skip


def test_the_document_names_every_route_and_what_goes_wrong(server: Live):
    with server.client() as http:
        document = http.get("/openapi.json").json()
    found = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert found == ROUTES
    for methods in document["paths"].values():
        for route in methods.values():
            assert {"200", "4XX", "5XX"} <= route["responses"].keys()
            assert "422" not in route["responses"]


def fuzzed(server: Live, examples: int) -> None:
    bounded = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for operation in schemathesis.openapi.from_url(f"{server.url}/openapi.json").get_all_operations():

        @bounded
        @given(case=operation.ok().as_strategy())
        def check(case):
            # what one model's vocabulary and format have no words for, the document cannot tell
            left_out = [positive_data_acceptance] if case.path in ("/tokenize", "/detokenize") else []
            case.call_and_validate(base_url=server.url, timeout=60, excluded_checks=left_out)
            if isinstance(case.body, dict) and case.body.keys() & {"messages", "prompt"}:
                # the same for the model that is here, so that what it asks for is really done; not all of it can be
                case.body = case.body | {"model": NAME, "max_tokens": 3}
                case.call_and_validate(base_url=server.url, timeout=60, excluded_checks=[positive_data_acceptance])

        check()


def test_a_few_answers_to_every_route_are_as_the_document_says(server: Live):
    fuzzed(server, 2)


@pytest.mark.slow
def test_many_answers_to_every_route_are_as_the_document_says(server: Live):
    fuzzed(server, 100)
