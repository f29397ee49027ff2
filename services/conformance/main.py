"""The service `conformance`: fixtures of the official MCP conformance suite."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from proto import notices
from proto.asking import CAPABILITIES, INPUTS
from proto.content import Audio, Block, Content, Embedded, Image, Message, PromptResult, ResourceResult, TextContents
from proto.content import Text as TextBlock
from proto.errors import InvalidParams, OperationError
from proto.notices import ListChanged
from proto.ops import conformance as ops
from services.conformance import fixtures
from services.runtime.handlers import Context, Environment, Handlers

_PAUSE_S = 0.06


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready at once."""
    handlers = Handlers()
    _answering(handlers, env)
    _asking(handlers)
    _asking_by_name(handlers)
    _resources(handlers)
    _prompts(handlers)
    yield handlers


def _content(*blocks: Block) -> Content:
    return Content(content=list(blocks))


def _text(text: str) -> Content:
    return _content(TextBlock(text=text))


def _answering(handlers: Handlers, env: Environment) -> None:
    image = Image(data=fixtures.PNG, mime_type="image/png")

    @handlers.handle(ops.SimpleText)
    async def simple_text(params: ops.SimpleText, ctx: Context) -> Content:
        return _text("This is a simple text response for testing.")

    @handlers.handle(ops.ImageContent)
    async def image_content(params: ops.ImageContent, ctx: Context) -> Content:
        return _content(image)

    @handlers.handle(ops.AudioContent)
    async def audio_content(params: ops.AudioContent, ctx: Context) -> Content:
        return _content(Audio(data=fixtures.WAV, mime_type="audio/wav"))

    @handlers.handle(ops.EmbeddedResource)
    async def embedded_resource(params: ops.EmbeddedResource, ctx: Context) -> Content:
        text = "This is an embedded resource content."
        return _content(_embedded("test://embedded-resource", "text/plain", text))

    @handlers.handle(ops.MultipleContentTypes)
    async def multiple_content_types(params: ops.MultipleContentTypes, ctx: Context) -> Content:
        data = json.dumps({"test": "data", "value": 123})
        return _content(
            TextBlock(text="Multiple content types test:"),
            image,
            _embedded("test://mixed-content-resource", "application/json", data),
        )

    @handlers.handle(ops.ToolWithLogging)
    async def tool_with_logging(params: ops.ToolWithLogging, ctx: Context) -> Content:
        ctx.log("info", "Tool execution started")
        await trio.sleep(_PAUSE_S)
        ctx.log("info", "Tool processing data")
        await trio.sleep(_PAUSE_S)
        ctx.log("info", "Tool execution completed")
        return _text("Tool with logging executed")

    @handlers.handle(ops.LoggingTool)
    async def logging_tool(params: ops.LoggingTool, ctx: Context) -> Content:
        ctx.log("info", "A line for those who asked for it")
        return _text("Logged")

    @handlers.handle(ops.ErrorHandling)
    async def error_handling(params: ops.ErrorHandling, ctx: Context) -> Content:
        raise OperationError("This tool intentionally returns an error for testing")

    @handlers.handle(ops.ToolWithProgress)
    async def tool_with_progress(params: ops.ToolWithProgress, ctx: Context) -> Content:
        for done in (0, 50, 100):
            ctx.progress(done, 100, f"Completed step {done} of 100")
            await trio.sleep(_PAUSE_S)
        return _text("Tool with progress executed")

    @handlers.handle(ops.TriggerToolChange)
    async def trigger_tool_change(params: ops.TriggerToolChange, ctx: Context) -> Content:
        env.publish(notices.LIST_CHANGED, ListChanged(list="tools"))
        return _text("Told clients that the tools changed")

    @handlers.handle(ops.TriggerPromptChange)
    async def trigger_prompt_change(params: ops.TriggerPromptChange, ctx: Context) -> Content:
        env.publish(notices.LIST_CHANGED, ListChanged(list="prompts"))
        return _text("Told clients that the prompts changed")

    @handlers.handle(ops.SchemaKeywords)
    async def schema_keywords(params: ops.SchemaKeywords, ctx: Context) -> Content:
        reached_at = getattr(params, params.contact_method)
        if not reached_at:
            raise InvalidParams(
                f"{params.contact_method} is missing: contactMethod says that it is used", field=params.contact_method
            )
        return _text(f"{params.name or 'Somebody'} is reached at {reached_at}")

    @handlers.handle(ops.CustomHeaders)
    async def custom_headers(params: ops.CustomHeaders, ctx: Context) -> Content:
        return _text(f"region={params.region}, query={params.query}")


def _asking(handlers: Handlers) -> None:
    @handlers.handle(ops.Sampling)
    async def sample(params: ops.Sampling, ctx: Context) -> Content:
        answer = await ctx.ask_client("sampling/createMessage", fixtures.sampling(params.prompt, 100))
        return _text(f"LLM response: {_sampled(answer)}")

    @handlers.handle(ops.Elicitation)
    async def elicit(params: ops.Elicitation, ctx: Context) -> Content:
        answer = await ctx.ask_client("elicitation/create", {**fixtures.USER, "message": params.message})
        return _text(f"User response: {json.dumps(answer)}")

    @handlers.handle(ops.ElicitationDefaults)
    async def elicit_defaults(params: ops.ElicitationDefaults, ctx: Context) -> Content:
        return _elicited(await ctx.ask_client("elicitation/create", fixtures.DEFAULTS))

    @handlers.handle(ops.ElicitationEnums)
    async def elicit_enums(params: ops.ElicitationEnums, ctx: Context) -> Content:
        return _elicited(await ctx.ask_client("elicitation/create", fixtures.ENUMS))

    @handlers.handle(ops.MissingCapability)
    async def missing_capability(params: ops.MissingCapability, ctx: Context) -> Content:
        answer = await ctx.ask_client("sampling/createMessage", fixtures.sampling("Say something", 10))
        return _text(_sampled(answer))

    @handlers.handle(ops.StreamingElicitation)
    async def streaming_elicitation(params: ops.StreamingElicitation, ctx: Context) -> Content:
        return _elicited(await ctx.ask_client("elicitation/create", fixtures.NAME))


def _asking_by_name(handlers: Handlers) -> None:
    @handlers.handle(ops.InputElicitation)
    async def input_elicitation(params: ops.InputElicitation, ctx: Context) -> Content:
        answers = await _ask(ctx, user_name=("elicitation/create", fixtures.NAME))
        return _text(f"Hello, {_field(answers['user_name'], 'name')}!")

    @handlers.handle(ops.InputSampling)
    async def input_sampling(params: ops.InputSampling, ctx: Context) -> Content:
        question = fixtures.sampling("What is the capital of France?", 100)
        answers = await _ask(ctx, capital_question=("sampling/createMessage", question))
        return _text(_sampled(answers["capital_question"]))

    @handlers.handle(ops.InputRoots)
    async def input_roots(params: ops.InputRoots, ctx: Context) -> Content:
        answers = await _ask(ctx, client_roots=("roots/list", {}))
        return _text("Roots: " + ", ".join(root["uri"] for root in answers["client_roots"]["roots"]))

    @handlers.handle(ops.InputState)
    async def input_state(params: ops.InputState, ctx: Context) -> Content:
        await _ask(ctx, confirm=("elicitation/create", fixtures.CONFIRM))
        return _text("state-ok")

    @handlers.handle(ops.InputMultiple)
    async def input_multiple(params: ops.InputMultiple, ctx: Context) -> Content:
        answers = await _ask(
            ctx,
            user_name=("elicitation/create", fixtures.NAME),
            greeting=("sampling/createMessage", fixtures.sampling("Generate a greeting", 50)),
            client_roots=("roots/list", {}),
        )
        name, greeting = _field(answers["user_name"], "name"), _sampled(answers["greeting"])
        return _text(f"{greeting} {name}, with {len(answers['client_roots']['roots'])} roots")

    @handlers.handle(ops.InputMultiRound)
    async def input_multi_round(params: ops.InputMultiRound, ctx: Context) -> Content:
        first = await _ask(ctx, step1=("elicitation/create", fixtures.STEP_1))
        second = await _ask(ctx, step2=("elicitation/create", fixtures.STEP_2))
        return _text(f"{_field(first['step1'], 'name')} likes {_field(second['step2'], 'color')}")

    @handlers.handle(ops.InputTampered)
    async def input_tampered(params: ops.InputTampered, ctx: Context) -> Content:
        await _ask(ctx, confirm=("elicitation/create", fixtures.CONFIRM))
        return _text("Confirmed")

    @handlers.handle(ops.InputCapabilities)
    async def input_capabilities(params: ops.InputCapabilities, ctx: Context) -> Content:
        able = await ctx.ask_client(CAPABILITIES, {})
        questions: dict[str, tuple[str, dict[str, Any]]] = {}
        if "sampling" in able:
            questions["greeting"] = ("sampling/createMessage", fixtures.sampling("Generate a greeting", 50))
        if "elicitation" in able:
            questions["user_name"] = ("elicitation/create", fixtures.NAME)
        answers = await _ask(ctx, **questions) if questions else {}
        return _text(f"Answered: {', '.join(answers) or 'nothing'}")


def _resources(handlers: Handlers) -> None:
    @handlers.handle(ops.StaticText)
    async def static_text(params: ops.StaticText, ctx: Context) -> str:
        return "This is the content of the static text resource."

    @handlers.handle(ops.StaticBinary)
    async def static_binary(params: ops.StaticBinary, ctx: Context) -> bytes:
        return fixtures.PNG

    @handlers.handle(ops.Watched)
    async def watched(params: ops.Watched, ctx: Context) -> str:
        return "Watched resource content"

    @handlers.handle(ops.Template)
    async def template(params: ops.Template, ctx: Context) -> ResourceResult:
        data = json.dumps({"id": params.id, "templateTest": True, "data": f"Data for ID: {params.id}"})
        uri = f"test://template/{params.id}/data"
        return ResourceResult(contents=[TextContents(uri=uri, mime_type="application/json", text=data)])

    @handlers.handle(ops.Complete)
    async def complete(params: ops.Complete, ctx: Context) -> list[str]:
        return [word for word in ("paris", "park", "party", "test", "testing") if word.startswith(params.value)]


def _prompts(handlers: Handlers) -> None:
    @handlers.handle(ops.SimplePrompt)
    async def simple_prompt(params: ops.SimplePrompt, ctx: Context) -> PromptResult:
        return _prompt(TextBlock(text="This is a simple prompt for testing."))

    @handlers.handle(ops.PromptWithArguments)
    async def prompt_with_arguments(params: ops.PromptWithArguments, ctx: Context) -> PromptResult:
        return _prompt(TextBlock(text=f"Prompt with arguments: arg1='{params.arg1}', arg2='{params.arg2}'"))

    @handlers.handle(ops.PromptWithResource)
    async def prompt_with_resource(params: ops.PromptWithResource, ctx: Context) -> PromptResult:
        return _prompt(
            _embedded(params.resourceUri, "text/plain", "Embedded resource content for testing."),
            TextBlock(text="Please process the embedded resource above."),
        )

    @handlers.handle(ops.PromptWithImage)
    async def prompt_with_image(params: ops.PromptWithImage, ctx: Context) -> PromptResult:
        image = Image(data=fixtures.PNG, mime_type="image/png")
        return _prompt(image, TextBlock(text="Please analyze the image above."))

    @handlers.handle(ops.InputPrompt)
    async def input_prompt(params: ops.InputPrompt, ctx: Context) -> PromptResult:
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
