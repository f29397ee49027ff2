"""Prompts that come with the system: tasks worded for the tools that are here.

They are filled in by the kernel's gateway.  Prompts of the user's own are Markdown files beside them.
"""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from proto.mcp import PromptResult
from proto.operation import Family, Params, Role

SERVICE = "kernel"
SURFACES = ("documents", "compact")

prompt = Family(SERVICE, role=Role.PROMPT, surfaces=SURFACES)


@prompt.read("search_codebase", deadline_s=10, title="Search the codebase")
class SearchCodebase(Params[PromptResult], frozen=True, kw_only=True):
    """Search for code patterns in the codebase"""

    pattern: Annotated[str, Meta(min_length=1, max_length=4096, description="Words or a regular expression to find")]
    file_type: Annotated[str, Meta(max_length=64, description="Only files with this extension, as in py")] = ""
    path: Annotated[str, Meta(max_length=4096, description="Only below this folder")] = ""


@prompt.read("summarize_document", deadline_s=10, title="Summarize a document")
class SummarizeDocument(Params[PromptResult], frozen=True, kw_only=True):
    """Summarize a stored document"""

    document_name: Annotated[str, Meta(min_length=1, max_length=4096, description="Its name, path or hash")]
    max_words: Annotated[int, Meta(ge=10, le=10_000, description="Length of the summary")] = 200
    focus: Annotated[str, Meta(max_length=4096, description="What the reader wants to know")] = ""


class Depth(enum.StrEnum):
    """How far to look."""

    QUICK = "quick"
    NORMAL = "normal"
    THOROUGH = "thorough"


@prompt.read("research", deadline_s=10, title="Research a topic")
class Research(Params[PromptResult], frozen=True, kw_only=True):
    """Research a topic in everything that is stored, with sources"""

    topic: Annotated[str, Meta(min_length=1, max_length=4096, description="What to find out")]
    depth: Annotated[Depth, Meta(description="quick, normal or thorough")] = Depth.NORMAL


@prompt.read("review_changes", deadline_s=10, title="Review changes")
class ReviewChanges(Params[PromptResult], frozen=True, kw_only=True):
    """Review what changed last, for defects and what they reach"""

    path: Annotated[str, Meta(max_length=4096, description="Only below this folder")] = ""
    recent: Annotated[int, Meta(ge=1, le=1000, description="How many of the latest documents to look at")] = 20
    focus: Annotated[str, Meta(max_length=4096, description="What to look for above all")] = ""
