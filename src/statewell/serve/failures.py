"""Errors as HTTP tells them: OpenAI's shape, a plain sentence, nothing of the inside."""

from __future__ import annotations

from dataclasses import dataclass

from statewell.errors import BusyError, CheckpointError, LimitError, RequestError, StatewellError

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


class RefusedError(StatewellError):
    """A request that gets this status and code instead of an answer. param: the field it is about."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True, kw_only=True)
class Failure:
    """status: of HTTP. code: a word for programs."""

    status: int
    code: str
    message: str
    param: str | None = None

    def document(self) -> dict[str, object]:
        """As OpenAI's API has it."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def failure_of(error: StatewellError) -> Failure:
    """How an error of ours is told."""
    match error:
        case RefusedError():
            return Failure(status=error.status, code=error.code, message=str(error), param=error.param)
        case LimitError():
            return Failure(status=400, code="context_length_exceeded", message=str(error))
        case RequestError():
            return Failure(status=400, code="invalid_value", message=str(error))
        case BusyError():
            return Failure(status=503, code="busy", message=str(error))
        case CheckpointError():
            # whose sentence may name files
            return Failure(status=409, code="session_unusable", message="The session does not fit this model.")
    return Failure(status=500, code="failed", message=str(error))
