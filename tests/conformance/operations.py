"""Operations of `conformance`: the fixtures that the official MCP conformance suite calls.

They are served by an ordinary service (`linckia serve --with tests.conformance`), so that the suite crosses
every part of the system that a real tool does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from proto.mcp import Content, PromptResult, ResourceResult
from proto.operation import Access, Params, Resource, Role, operation

SERVICE = "conformance"

_fixture = partial(operation, service=SERVICE, access=Access.READ, idempotent=True, deadline_s=60)
_asking = partial(_fixture, asks=True)
_prompt = partial(_fixture, role=Role.PROMPT)


# ---- tools that answer ----------------------------------------------------------------------------------------------


@_fixture("test_simple_text")
class SimpleText(Params[Content], frozen=True, kw_only=True):
    """Returns a text block."""


@_fixture("test_image_content")
class ImageContent(Params[Content], frozen=True, kw_only=True):
    """Returns an image block."""


@_fixture("test_audio_content")
class AudioContent(Params[Content], frozen=True, kw_only=True):
    """Returns an audio block."""


@_fixture("test_embedded_resource")
class EmbeddedResource(Params[Content], frozen=True, kw_only=True):
    """Returns an embedded resource."""


@_fixture("test_multiple_content_types")
class MultipleContentTypes(Params[Content], frozen=True, kw_only=True):
    """Returns text, an image and a resource."""


@_fixture("test_tool_with_logging")
class ToolWithLogging(Params[Content], frozen=True, kw_only=True):
    """Sends three log messages while it runs."""


@_fixture("test_logging_tool")
class LoggingTool(Params[Content], frozen=True, kw_only=True):
    """Sends a log message, which only a client that wants it may see."""


@_fixture("test_error_handling")
class ErrorHandling(Params[Content], frozen=True, kw_only=True):
    """Always fails."""


@_fixture("test_tool_with_progress")
class ToolWithProgress(Params[Content], frozen=True, kw_only=True):
    """Reports its progress as 0, 50 and 100 of 100."""


@_fixture("test_trigger_tool_change")
class TriggerToolChange(Params[Content], frozen=True, kw_only=True):
    """Tells clients that the list of tools has changed."""


@_fixture("test_trigger_prompt_change")
class TriggerPromptChange(Params[Content], frozen=True, kw_only=True):
    """Tells clients that the list of prompts has changed."""


@_fixture("test_custom_headers")
class CustomHeaders(Params[Content], frozen=True, kw_only=True):
    """Returns its arguments, one of which clients repeat in a header."""

    region: Annotated[
        str, Meta(description="Repeated in the header Mcp-Param-Region", extra_json_schema={"x-mcp-header": "Region"})
    ]
    query: Annotated[str, Meta(description="Not repeated in any header")] = ""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where somebody lives."""

    street: str = ""
    city: str = ""


@_fixture("json_schema_2020_12_tool")
class SchemaKeywords(Params[Content], frozen=True, kw_only=True):
    """Returns contact details; its schema has the keywords of JSON Schema that field types cannot express."""

    rules: ClassVar[Mapping[str, Any]] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
    }

    name: Annotated[str, Meta(description="Who is meant")] = ""
    address: Address | None = None
    contact_method: Annotated[Literal["phone", "email"], Meta(description="How to reach them")] = msgspec.field(
        default="email", name="contactMethod"
    )
    phone: Annotated[str, Meta(description="Their number")] = ""
    email: Annotated[str, Meta(description="Their address for mail")] = ""


# ---- tools that ask -------------------------------------------------------------------------------------------------


@_asking("test_sampling")
class Sampling(Params[Content], frozen=True, kw_only=True):
    """Asks the client's model."""

    prompt: Annotated[str, Meta(description="The prompt for the model")]


@_asking("test_elicitation")
class Elicitation(Params[Content], frozen=True, kw_only=True):
    """Asks the user for a name and an address."""

    message: Annotated[str, Meta(description="What to show the user")]


@_asking("test_elicitation_sep1034_defaults")
class ElicitationDefaults(Params[Content], frozen=True, kw_only=True):
    """Asks the user with a default for each primitive type."""


@_asking("test_elicitation_sep1330_enums")
class ElicitationEnums(Params[Content], frozen=True, kw_only=True):
    """Asks the user with every kind of enumeration."""


@_asking("test_missing_capability")
class MissingCapability(Params[Content], frozen=True, kw_only=True):
    """Asks for sampling, which the client must have declared."""


@_asking("test_streaming_elicitation")
class StreamingElicitation(Params[Content], frozen=True, kw_only=True):
    """Asks the user while a response stream may be open."""


@_asking("test_input_required_result_elicitation")
class InputElicitation(Params[Content], frozen=True, kw_only=True):
    """Asks the user for a name."""


@_asking("test_input_required_result_sampling")
class InputSampling(Params[Content], frozen=True, kw_only=True):
    """Asks the client's model for a capital."""


@_asking("test_input_required_result_list_roots")
class InputRoots(Params[Content], frozen=True, kw_only=True):
    """Asks for the client's roots."""


@_asking("test_input_required_result_request_state")
class InputState(Params[Content], frozen=True, kw_only=True):
    """Asks for a confirmation and relies on the request state."""


@_asking("test_input_required_result_multiple_inputs")
class InputMultiple(Params[Content], frozen=True, kw_only=True):
    """Asks three things at once."""


@_asking("test_input_required_result_multi_round")
class InputMultiRound(Params[Content], frozen=True, kw_only=True):
    """Asks one thing after the other."""


@_asking("test_input_required_result_tampered_state")
class InputTampered(Params[Content], frozen=True, kw_only=True):
    """Asks for a confirmation; a request state that was changed is refused."""


@_asking("test_input_required_result_capabilities")
class InputCapabilities(Params[Content], frozen=True, kw_only=True):
    """Asks only what the client declared that it can answer."""


# ---- resources ------------------------------------------------------------------------------------------------------


@_fixture(
    "test_static_text", role=Role.RESOURCE,
    resource=Resource(uri="test://static-text", name="Static text", mime_type="text/plain"),
)  # fmt: skip
class StaticText(Params[str], frozen=True, kw_only=True):
    """A text."""


@_fixture(
    "test_static_binary", role=Role.RESOURCE,
    resource=Resource(uri="test://static-binary", name="Static image", mime_type="image/png"),
)  # fmt: skip
class StaticBinary(Params[bytes], frozen=True, kw_only=True):
    """An image."""


@_fixture(
    "test_watched", role=Role.RESOURCE,
    resource=Resource(uri="test://watched-resource", name="Watched", mime_type="text/plain"),
)  # fmt: skip
class Watched(Params[str], frozen=True, kw_only=True):
    """A resource to subscribe to."""


@_fixture(
    "test_template", role=Role.RESOURCE, completion="test_complete",
    resource=Resource(uri="test://template/{id}/data", name="Template", mime_type="application/json"),
)  # fmt: skip
class Template(Params[ResourceResult], frozen=True, kw_only=True):
    """A resource for each id."""

    id: Annotated[str, Meta(description="Any id")]


# ---- prompts --------------------------------------------------------------------------------------------------------


@_prompt("test_simple_prompt")
class SimplePrompt(Params[PromptResult], frozen=True, kw_only=True):
    """A prompt without arguments."""


@_prompt("test_prompt_with_arguments", completion="test_complete")
class PromptWithArguments(Params[PromptResult], frozen=True, kw_only=True):
    """A prompt with two arguments."""

    arg1: Annotated[str, Meta(description="First test argument")]
    arg2: Annotated[str, Meta(description="Second test argument")]


@_prompt("test_prompt_with_embedded_resource")
class PromptWithResource(Params[PromptResult], frozen=True, kw_only=True):
    """A prompt that embeds a resource."""

    resourceUri: Annotated[str, Meta(description="URI of the resource to embed")]  # the suite names it so


@_prompt("test_prompt_with_image")
class PromptWithImage(Params[PromptResult], frozen=True, kw_only=True):
    """A prompt with an image."""


@_prompt("test_input_required_result_prompt", asks=True)
class InputPrompt(Params[PromptResult], frozen=True, kw_only=True):
    """A prompt that asks the user for its context."""


@_fixture("test_complete", role=Role.INTERNAL, callers=("front",))
class Complete(Params[list[str]], frozen=True, kw_only=True):
    """Completes arguments of the fixtures."""

    argument: str
    value: str
    context: dict[str, str] = msgspec.field(default_factory=dict)
