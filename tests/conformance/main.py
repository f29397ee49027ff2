"""The service `conformance`: fixtures of the official MCP conformance suite."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from proto import mcp
from proto.errors import InvalidParams, OperationError
from proto.mcp import (
    CAPABILITIES,
    INPUTS,
    Audio,
    Block,
    Content,
    Embedded,
    Image,
    ListChanged,
    Message,
    PromptResult,
    ResourceResult,
    TextContents,
)
from proto.mcp import Text as TextBlock
from services.runtime.handlers import Context, Environment, Handlers, handles
from tests.conformance import fixtures
from tests.conformance import operations as ops

_PAUSE_S = 0.06
_IMAGE = Image(data=fixtures.PNG, mime_type="image/png")


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once."""
    yield Handlers(Answering(env), Asking(), AskingByName(), Resources(), Prompts())


def _content(*blocks: Block) -> Content:
    return Content(content=list(blocks))


def _text(text: str) -> Content:
    return _content(TextBlock(text=text))


class Answering:
    """Tools that answer at once, log, report progress or fail."""

    def __init__(self, env: Environment) -> None:
        self._env = env

    @handles(ops.SimpleText)
    async def simple_text(self, params: ops.SimpleText, ctx: Context) -> Content:
        return _text("This is a simple text response for testing.")

    @handles(ops.ImageContent)
    async def image_content(self, params: ops.ImageContent, ctx: Context) -> Content:
        return _content(_IMAGE)

    @handles(ops.AudioContent)
    async def audio_content(self, params: ops.AudioContent, ctx: Context) -> Content:
        return _content(Audio(data=fixtures.WAV, mime_type="audio/wav"))

    @handles(ops.EmbeddedResource)
    async def embedded_resource(self, params: ops.EmbeddedResource, ctx: Context) -> Content:
        text = "This is an embedded resource content."
        return _content(_embedded("test://embedded-resource", "text/plain", text))

    @handles(ops.MultipleContentTypes)
    async def multiple_content_types(self, params: ops.MultipleContentTypes, ctx: Context) -> Content:
        data = json.dumps({"test": "data", "value": 123})
        return _content(
            TextBlock(text="Multiple content types test:"),
            _IMAGE,
            _embedded("test://mixed-content-resource", "application/json", data),
        )

    @handles(ops.ToolWithLogging)
    async def tool_with_logging(self, params: ops.ToolWithLogging, ctx: Context) -> Content:
        ctx.log("info", "Tool execution started")
        await trio.sleep(_PAUSE_S)
        ctx.log("info", "Tool processing data")
        await trio.sleep(_PAUSE_S)
        ctx.log("info", "Tool execution completed")
        return _text("Tool with logging executed")

    @handles(ops.LoggingTool)
    async def logging_tool(self, params: ops.LoggingTool, ctx: Context) -> Content:
        ctx.log("info", "A line for those who asked for it")
        return _text("Logged")

    @handles(ops.ErrorHandling)
    async def error_handling(self, params: ops.ErrorHandling, ctx: Context) -> Content:
        raise OperationError("This tool intentionally returns an error for testing")

    @handles(ops.ToolWithProgress)
    async def tool_with_progress(self, params: ops.ToolWithProgress, ctx: Context) -> Content:
        for done in (0, 50, 100):
            ctx.progress(done, 100, f"Completed step {done} of 100")
            await trio.sleep(_PAUSE_S)
        return _text("Tool with progress executed")

    @handles(ops.TriggerToolChange)
    async def trigger_tool_change(self, params: ops.TriggerToolChange, ctx: Context) -> Content:
        self._env.publish(mcp.LIST_CHANGED, ListChanged(list="tools"))
        return _text("Told clients that the tools changed")

    @handles(ops.TriggerPromptChange)
    async def trigger_prompt_change(self, params: ops.TriggerPromptChange, ctx: Context) -> Content:
        self._env.publish(mcp.LIST_CHANGED, ListChanged(list="prompts"))
        return _text("Told clients that the prompts changed")

    @handles(ops.SchemaKeywords)
    async def schema_keywords(self, params: ops.SchemaKeywords, ctx: Context) -> Content:
        reached_at = getattr(params, params.contact_method)
        if not reached_at:
            raise InvalidParams(
                f"{params.contact_method} is missing: contactMethod says that it is used", field=params.contact_method
            )
        return _text(f"{params.name or 'Somebody'} is reached at {reached_at}")

    @handles(ops.CustomHeaders)
    async def custom_headers(self, params: ops.CustomHeaders, ctx: Context) -> Content:
        return _text(f"region={params.region}, query={params.query}")


class Asking:
    """Tools that ask the client one thing."""

    @handles(ops.Sampling)
    async def sample(self, params: ops.Sampling, ctx: Context) -> Content:
        answer = await ctx.ask_client("sampling/createMessage", fixtures.sampling(params.prompt, 100))
        return _text(f"LLM response: {_sampled(answer)}")

    @handles(ops.Elicitation)
    async def elicit(self, params: ops.Elicitation, ctx: Context) -> Content:
        answer = await ctx.ask_client("elicitation/create", {**fixtures.USER, "message": params.message})
        return _text(f"User response: {json.dumps(answer)}")

    @handles(ops.ElicitationDefaults)
    async def elicit_defaults(self, params: ops.ElicitationDefaults, ctx: Context) -> Content:
        return _elicited(await ctx.ask_client("elicitation/create", fixtures.DEFAULTS))

    @handles(ops.ElicitationEnums)
    async def elicit_enums(self, params: ops.ElicitationEnums, ctx: Context) -> Content:
        return _elicited(await ctx.ask_client("elicitation/create", fixtures.ENUMS))

    @handles(ops.MissingCapability)
    async def missing_capability(self, params: ops.MissingCapability, ctx: Context) -> Content:
        answer = await ctx.ask_client("sampling/createMessage", fixtures.sampling("Say something", 10))
        return _text(_sampled(answer))

    @handles(ops.StreamingElicitation)
    async def streaming_elicitation(self, params: ops.StreamingElicitation, ctx: Context) -> Content:
        return _elicited(await ctx.ask_client("elicitation/create", fixtures.NAME))


class AskingByName:
    """Tools that ask the client several things, each by its name."""

    @handles(ops.InputElicitation)
    async def input_elicitation(self, params: ops.InputElicitation, ctx: Context) -> Content:
        answers = await _ask(ctx, user_name=("elicitation/create", fixtures.NAME))
        return _text(f"Hello, {_field(answers['user_name'], 'name')}!")

    @handles(ops.InputSampling)
    async def input_sampling(self, params: ops.InputSampling, ctx: Context) -> Content:
        question = fixtures.sampling("What is the capital of France?", 100)
        answers = await _ask(ctx, capital_question=("sampling/createMessage", question))
        return _text(_sampled(answers["capital_question"]))

    @handles(ops.InputRoots)
    async def input_roots(self, params: ops.InputRoots, ctx: Context) -> Content:
        answers = await _ask(ctx, client_roots=("roots/list", {}))
        return _text("Roots: " + ", ".join(root["uri"] for root in answers["client_roots"]["roots"]))

    @handles(ops.InputState)
    async def input_state(self, params: ops.InputState, ctx: Context) -> Content:
        await _ask(ctx, confirm=("elicitation/create", fixtures.CONFIRM))
        return _text("state-ok")

    @handles(ops.InputMultiple)
    async def input_multiple(self, params: ops.InputMultiple, ctx: Context) -> Content:
        answers = await _ask(
            ctx,
            user_name=("elicitation/create", fixtures.NAME),
            greeting=("sampling/createMessage", fixtures.sampling("Generate a greeting", 50)),
            client_roots=("roots/list", {}),
        )
        name, greeting = _field(answers["user_name"], "name"), _sampled(answers["greeting"])
        return _text(f"{greeting} {name}, with {len(answers['client_roots']['roots'])} roots")

    @handles(ops.InputMultiRound)
    async def input_multi_round(self, params: ops.InputMultiRound, ctx: Context) -> Content:
        first = await _ask(ctx, step1=("elicitation/create", fixtures.STEP_1))
        second = await _ask(ctx, step2=("elicitation/create", fixtures.STEP_2))
        return _text(f"{_field(first['step1'], 'name')} likes {_field(second['step2'], 'color')}")

    @handles(ops.InputTampered)
    async def input_tampered(self, params: ops.InputTampered, ctx: Context) -> Content:
        await _ask(ctx, confirm=("elicitation/create", fixtures.CONFIRM))
        return _text("Confirmed")

    @handles(ops.InputCapabilities)
    async def input_capabilities(self, params: ops.InputCapabilities, ctx: Context) -> Content:
        able = await ctx.ask_client(CAPABILITIES, {})
        questions: dict[str, tuple[str, dict[str, Any]]] = {}
        if "sampling" in able:
            questions["greeting"] = ("sampling/createMessage", fixtures.sampling("Generate a greeting", 50))
        if "elicitation" in able:
            questions["user_name"] = ("elicitation/create", fixtures.NAME)
        answers = await _ask(ctx, **questions) if questions else {}
        return _text(f"Answered: {', '.join(answers) or 'nothing'}")


class Resources:
    """Resources, a template of them, and completion."""

    @handles(ops.StaticText)
    async def static_text(self, params: ops.StaticText, ctx: Context) -> str:
        return "This is the content of the static text resource."

    @handles(ops.StaticBinary)
    async def static_binary(self, params: ops.StaticBinary, ctx: Context) -> bytes:
        return fixtures.PNG

    @handles(ops.Watched)
    async def watched(self, params: ops.Watched, ctx: Context) -> str:
        return "Watched resource content"

    @handles(ops.Template)
    async def template(self, params: ops.Template, ctx: Context) -> ResourceResult:
        data = json.dumps({"id": params.id, "templateTest": True, "data": f"Data for ID: {params.id}"})
        uri = f"test://template/{params.id}/data"
        return ResourceResult(contents=[TextContents(uri=uri, mime_type="application/json", text=data)])

    @handles(ops.Complete)
    async def complete(self, params: ops.Complete, ctx: Context) -> list[str]:
        return [word for word in ("paris", "park", "party", "test", "testing") if word.startswith(params.value)]


class Prompts:
    """Prompts, one of which asks the client first."""

    @handles(ops.SimplePrompt)
    async def simple_prompt(self, params: ops.SimplePrompt, ctx: Context) -> PromptResult:
        return _prompt(TextBlock(text="This is a simple prompt for testing."))

    @handles(ops.PromptWithArguments)
    async def prompt_with_arguments(self, params: ops.PromptWithArguments, ctx: Context) -> PromptResult:
        return _prompt(TextBlock(text=f"Prompt with arguments: arg1='{params.arg1}', arg2='{params.arg2}'"))

    @handles(ops.PromptWithResource)
    async def prompt_with_resource(self, params: ops.PromptWithResource, ctx: Context) -> PromptResult:
        return _prompt(
            _embedded(params.resourceUri, "text/plain", "Embedded resource content for testing."),
            TextBlock(text="Please process the embedded resource above."),
        )

    @handles(ops.PromptWithImage)
    async def prompt_with_image(self, params: ops.PromptWithImage, ctx: Context) -> PromptResult:
        return _prompt(_IMAGE, TextBlock(text="Please analyze the image above."))

    @handles(ops.InputPrompt)
    async def input_prompt(self, params: ops.InputPrompt, ctx: Context) -> PromptResult:
        answers = await _ask(ctx, user_context=("elicitation/create", fixtures.PROMPT_CONTEXT))
        return _prompt(TextBlock(text=f"Use this context: {_field(answers['user_context'], 'context')}"))


def _prompt(*blocks: Block) -> PromptResult:
    return PromptResult(messages=[Message(role="user", content=block) for block in blocks])


def _embedded(uri: str, mime_type: str, text: str) -> Embedded:
    return Embedded(resource=TextContents(uri=uri, mime_type=mime_type, text=text))


async def _ask(ctx: Context, **questions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    inputs = {name: {"method": method, "params": params} for name, (method, params) in questions.items()}
    return await ctx.ask_client(INPUTS, {"inputs": inputs})


def _elicited(answer: dict[str, Any]) -> Content:
    content = json.dumps(answer.get("content", {}))
    return _text(f"Elicitation completed: action={answer['action']}, content={content}")


def _field(answer: dict[str, Any], name: str) -> str:
    return str((answer.get("content") or {}).get(name, answer.get("action")))


def _sampled(answer: dict[str, Any]) -> str:
    content = answer["content"]
    blocks = content if isinstance(content, list) else [content]
    return " ".join(block["text"] for block in blocks if block.get("type") == "text")
