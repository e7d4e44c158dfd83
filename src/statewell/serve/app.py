"""The application: all routes of one server behind its gate, with every error in one shape. Start at `make_app`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from statewell import __version__
from statewell.errors import StatewellError
from statewell.serve import chat, completions, session_routes, small_routes
from statewell.serve.failures import Failure, failure_of
from statewell.serve.security import Gate, Keys
from statewell.serve.served import Served


def make_app(served: Served, keys: Keys | None = None, names: Iterable[str] = ()) -> ASGIApp:
    """The ASGI application. keys: who may ask, everyone by default. names: hosts it answers to besides local ones."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        served.service.start()
        yield
        await served.service.close()

    # the pages of /docs load scripts from elsewhere, and this one works offline
    app = FastAPI(title="statewell", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    for routes in (chat, completions, session_routes, small_routes):
        app.include_router(routes.router(served))
    app.add_exception_handler(StatewellError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(Exception, _unforeseen)
    return Gate(app, keys or Keys(), names, served.limits, served.metrics)


def _reply(failure: Failure, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(failure.document(), failure.status, headers)


async def _ours(_: Request, error: Exception) -> JSONResponse:
    failure = failure_of(cast(StatewellError, error))
    return _reply(failure, {"retry-after": "1"} if failure.status == 503 else None)


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    """The first thing that is wrong with a body, by the path of its field."""
    first = cast(RequestValidationError, error).errors()[0]
    if first["type"] == "json_invalid":
        return _reply(Failure(status=400, code="invalid_json", message="The body is not JSON."))
    path = ".".join(str(step) for step in first["loc"][1:]) or None
    message = f"{path or 'The body'}: {first['msg']}."
    return _reply(Failure(status=400, code="invalid_value", message=message, param=path))


async def _plain(_: Request, error: Exception) -> JSONResponse:
    """What the framework refuses: no such route, another method, a body that cannot be read."""
    error = cast(HTTPException, error)
    message = {404: "There is no such route.", 405: "The route does not take this method."}.get(
        error.status_code, f"{HTTPStatus(error.status_code).phrase}."
    )
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return _reply(Failure(status=error.status_code, code=code, message=message), dict(error.headers or {}))


async def _unforeseen(_: Request, error: Exception) -> JSONResponse:
    # the log has it; the client is told nothing of the inside
    return _reply(Failure(status=500, code="failed", message="Something went wrong here; the log says what."))
