"""The routes beside the answers: models, tokens, health, figures."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from statewell.serve import shapes
from statewell.serve.documented import FAILURES
from statewell.serve.metrics import CONTENT_TYPE
from statewell.serve.prompts import message_of, text_ids
from statewell.serve.schemas import DetokenizeRequest, TokenizeChat, TokenizeText
from statewell.serve.served import Served
from statewell.text.chat import chat_from_json


def router(served: Served) -> APIRouter:
    routes = APIRouter(responses=FAILURES)
    card = shapes.ModelCard(id=served.name, created=served.began, context=served.context)

    @routes.get("/v1/models")
    async def models() -> shapes.ModelList:
        """The one model that is served."""
        return shapes.ModelList(data=[card])

    @routes.get("/v1/models/{model}")
    async def model(model: str) -> shapes.ModelCard:
        """The model of that name."""
        served.require_model(model)
        return card

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeText | TokenizeChat) -> shapes.Tokens:
        """Token ids of a prompt, or of a conversation as the model would read it."""
        served.require_model(body.model)
        if isinstance(body, TokenizeText):
            ids = list(text_ids(served, body.prompt))
        else:
            chat = chat_from_json({"messages": [message_of(message) for message in body.messages]})
            ids = list(served.template.ids(chat))
        return shapes.Tokens(tokens=ids, count=len(ids), max_model_len=served.context)

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> shapes.Detokenized:
        """The text of token ids."""
        served.require_model(body.model)
        return shapes.Detokenized(prompt=served.tokenizer.decode(body.tokens))

    @routes.get("/health", responses={503: {"model": shapes.Health}})
    async def health() -> JSONResponse:
        """Whether requests are taken."""
        status = "ok" if served.service.ready else "broken" if served.service.broken else "stopping"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Figures in Prometheus's text format."""
        gauges = await served.service.call(lambda engine: engine.gauges())
        return Response(served.metrics.page(gauges, served.device), media_type=CONTENT_TYPE)

    return routes
