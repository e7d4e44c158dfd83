"""What requests look like: OpenAI's fields with the limits of this server, and a few more under their usual names.

A field that is not here is refused by name, so that nothing asked for is silently left out. Fields that OpenAI's
clients send and that change nothing here are listed as such.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from statewell.engine.sampling import LARGEST_SEED

MOST_TOKENS = 2**17  # new ones of a choice
MOST_PROMPT = 2**20  # token ids
MOST_STOPS = 16
SESSION_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


def _whole(value: object) -> object:
    # JSON has one kind of number, and its schemas call 2.0 an integer
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = StrictStr
# goes last, after the limits: pydantic leaves limits that stand after it out of the schema
WHOLE = BeforeValidator(_whole)
Whole = Annotated[StrictInt, WHOLE]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Stop = Annotated[Text, Field(min_length=1, max_length=256)]
TokenId = Annotated[StrictInt, Field(ge=0, le=2**31 - 1), WHOLE]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MOST_PROMPT)]
SessionName = Annotated[Text, Field(pattern=SESSION_NAME)]
Object = dict[str, object]
Biases = Annotated[
    dict[Annotated[str, Field(pattern="^[0-9]{1,9}$")], Annotated[Number, Field(ge=-100, le=100)]],
    # without it the document would allow other names beside those of the pattern
    Field(max_length=1024, json_schema_extra={"additionalProperties": False}),
]


class Body(BaseModel):
    """A JSON object whose every field is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamOptions(Body):
    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = Field(None, description="Changes nothing here.")


class Choosing(Body):
    """How tokens are chosen, how many, and when to end: in every request for text."""

    model: Text = Field(max_length=256, description="The name /v1/models gives.")
    n: Annotated[StrictInt, Field(ge=1, le=128), WHOLE] | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = Field(None, description="1 by default, 0 is greedy.")
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=1, le=2**31 - 1), WHOLE] | None = None
    min_p: Annotated[Number, Field(ge=0, lt=1)] | None = None
    seed: Annotated[StrictInt, Field(ge=0, le=LARGEST_SEED), WHOLE] | None = Field(
        None, description="A random one by default."
    )
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=100)] | None = None
    logit_bias: Biases | None = None
    beams: Annotated[StrictInt, Field(ge=1, le=128), WHOLE] | None = Field(
        None, description="More than 1: beam search."
    )
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: Text | None = Field(None, max_length=256, description="Changes nothing here.")
    metadata: Object | None = Field(None, description="Changes nothing here.")

    @property
    def stops(self) -> tuple[str, ...]:
        """All stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class JsonSchema(Body):
    name: Text = Field("", max_length=256)
    description: Text | None = None
    schema_: Object = Field(default_factory=dict, alias="schema")
    strict: StrictBool | None = Field(None, description="A schema is always followed.")


class SchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class PlainFormat(Body):
    type: Literal["text", "json_object"]


class CompletionRequest(Choosing):
    """Go on with a text, or several."""

    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(min_length=1, max_length=128)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=128)]
    ) = Field(description="Text or token ids, one prompt or several.")
    max_tokens: Annotated[StrictInt, Field(ge=0, le=MOST_TOKENS), WHOLE] | None = Field(
        None, description="16 by default; 0, with echo, only scores the prompt."
    )
    logprobs: Annotated[StrictInt, Field(ge=0, le=20), WHOLE] | None = None
    echo: StrictBool | None = None
    response_format: PlainFormat | SchemaFormat | None = None


class ToolFunction(BaseModel):
    """A tool as it is shown to the model."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: Text = Field(min_length=1, max_length=256)


class Tool(Body):
    type: Literal["function"]
    function: ToolFunction


class CalledFunction(Body):
    name: Text = Field(min_length=1, max_length=256)
    arguments: Text = ""


class MessageCall(Body):
    index: Whole | None = Field(None, description="Changes nothing here.")
    id: Text = Field(max_length=256)
    type: Literal["function"] = "function"
    function: CalledFunction


class TextPart(Body):
    type: Literal["text"]
    text: Text


class ChatMessage(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(max_length=1024)] | None = None
    name: Text | None = Field(None, max_length=256)
    reasoning_content: Text | None = None
    tool_calls: Annotated[list[MessageCall], Field(max_length=128)] | None = None
    tool_call_id: Text | None = Field(None, max_length=256)
    refusal: Text | None = Field(None, description="Changes nothing here.")
    annotations: list[Object] | None = Field(None, description="Changes nothing here.")


class NamedFunction(Body):
    name: Text


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Choosing):
    """Answer in a conversation."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]
    max_tokens: Annotated[StrictInt, Field(ge=1, le=MOST_TOKENS), WHOLE] | None = None
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, le=MOST_TOKENS), WHOLE] | None = Field(
        None, description="Goes before max_tokens; 1,024 where neither is given."
    )
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20), WHOLE] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: StrictBool | None = Field(None, description="Changes nothing here.")
    response_format: PlainFormat | SchemaFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "max"] | None = Field(
        None, description="none and minimal: no reasoning. For models whose format has a place for it."
    )
    store: StrictBool | None = Field(None, description="Changes nothing here.")


class TokenizeText(Body):
    """Text to token ids."""

    model: Text | None = Field(None, max_length=256)
    prompt: Text


class TokenizeChat(Body):
    """A conversation to token ids, as the model would read it."""

    model: Text | None = Field(None, max_length=256)
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096)]


class DetokenizeRequest(Body):
    """Token ids to text."""

    model: Text | None = Field(None, max_length=256)
    tokens: Annotated[list[TokenId], Field(max_length=MOST_PROMPT)]


class SaveRequest(Body):
    """Keep the memory of an answer under a name."""

    name: SessionName
    response_id: Text = Field(max_length=64, description="The id of a recent answer; of several choices, the first.")


class ForkRequest(Body):
    """Copy a session."""

    name: SessionName
