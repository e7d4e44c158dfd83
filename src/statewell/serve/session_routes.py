"""/v1/sessions: keep the memory of an answer in a file, have it back, copy it, delete it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request

from statewell.engine.engine import Engine
from statewell.errors import LimitError
from statewell.memory.base import Snapshot
from statewell.serve import shapes
from statewell.serve.documented import FAILURES
from statewell.serve.failures import RefusedError
from statewell.serve.recent import Answer
from statewell.serve.schemas import SESSION_NAME, ForkRequest, SaveRequest
from statewell.serve.security import owner_of
from statewell.serve.served import Served
from statewell.serve.sessions import SavedSession

Name = Annotated[str, Path(pattern=SESSION_NAME)]


def router(served: Served) -> APIRouter:
    routes = APIRouter(prefix="/v1/sessions", responses=FAILURES)

    @routes.get("")
    async def sessions(http: Request) -> shapes.SessionList:
        """All sessions of this key."""
        every = await asyncio.to_thread(served.sessions.all, owner_of(http.scope))
        return shapes.SessionList(data=[_card(served, session) for session in every])

    @routes.post("")
    async def save(http: Request, body: SaveRequest) -> shapes.Session:
        """Save the memory of a recent answer, as far as it is still held."""
        owner = owner_of(http.scope)
        answer = served.recent.find(owner, body.response_id)
        if answer is None:
            message = f"{body.response_id!r} is no recent answer; ask again, then save."
            raise RefusedError(404, "response_not_found", message, "response_id")
        snapshot = await served.service.call(lambda engine: _snapshot(engine, owner, answer.ids))
        saved = await asyncio.to_thread(served.sessions.save, body.name, snapshot, answer)
        return _whole(served, saved)

    @routes.get("/{name}")
    async def session(http: Request, name: Name) -> shapes.Session:
        """What a session holds."""
        return _whole(served, await asyncio.to_thread(served.sessions.open, owner_of(http.scope), name))

    @routes.post("/{name}/restore")
    async def restore(http: Request, name: Name) -> shapes.Session:
        """Take a session into memory: a prompt that goes on from it is not read again."""
        owner = owner_of(http.scope)
        session, snapshot = await asyncio.to_thread(served.sessions.load, owner, name)
        await served.service.call(lambda engine: _take_in(engine, owner, session, snapshot))
        # the next turn is then written in the tokens that were said
        served.recent.keep(f"session-{name}", Answer(owner, session.ids + session.unread, session.messages))
        return _whole(served, session)

    @routes.post("/{name}/fork")
    async def fork(http: Request, name: Name, body: ForkRequest) -> shapes.Session:
        """Copy a session under another name."""
        return _whole(served, await asyncio.to_thread(served.sessions.fork, owner_of(http.scope), name, body.name))

    @routes.delete("/{name}")
    async def delete(http: Request, name: Name) -> shapes.Deleted:
        """Delete a session's file; what is in memory goes as anything that is kept."""
        await asyncio.to_thread(served.sessions.delete, owner_of(http.scope), name)
        return shapes.Deleted(name=name)

    return routes


def _snapshot(engine: Engine, owner: str, ids: tuple[int, ...]) -> Snapshot:
    snapshot = engine.reuse.snapshot(owner, ids)
    if snapshot is None:
        raise RefusedError(409, "evicted", "The answer's memory was let go to make room; ask again, then save.")
    return snapshot


def _take_in(engine: Engine, owner: str, session: SavedSession, snapshot: Snapshot) -> None:
    """Runs in the engine's thread. Raises RefusedError where there is no room now, CheckpointError for a misfit."""
    vocab = engine.model.config.vocab
    if any(token >= vocab for token in session.ids):
        raise RefusedError(409, "session_unusable", f"The session {session.name!r} is damaged; delete it.", "name")
    try:
        engine.reuse.take_in(owner, session.ids, snapshot)
    except LimitError:
        raise RefusedError(503, "busy", "There is no room for the session now; try again later.") from None


def _card(served: Served, session: SavedSession) -> shapes.SessionCard:
    return shapes.SessionCard(
        name=session.name,
        tokens=len(session.ids),
        bytes=session.bytes,
        created=session.created,
        usable=session.fingerprint == served.sessions.fingerprint,
    )


def _whole(served: Served, session: SavedSession) -> shapes.Session:
    return shapes.Session(
        **_card(served, session).model_dump(),
        text=served.words.joined(session.ids).decode("utf-8", errors="replace"),
        messages=None if session.messages is None else [dict(message) for message in session.messages],
    )
