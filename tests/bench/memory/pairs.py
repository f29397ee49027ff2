"""Pairs of statements judged by a person, and how many of them we judge alike with and without vectors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TypeAlias

import numpy as np

from proto.ops.embed import TextKind
from services.embed.main import load
from services.embed.serving import EmbedSettings
from services.embed.weights import PACKAGED
from services.memory.comparison import Relation, relation, updates

Vectors: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"

PAIRS = {
    Relation.SIMILAR: (
        ("The user prefers dark mode", "User prefers dark mode."),
        ("The user prefers dark mode", "The user likes dark mode better"),
        ("Alice's birthday is on 3 May", "Alice was born on 3 May"),
        ("The staging server listens on port 8080", "Staging listens on port 8080"),
        ("The staging server listens on port 8080", "Port 8080 is what the staging server listens on"),
        ("Ben is allergic to peanuts", "Ben has a peanut allergy"),
        ("We deploy on Fridays", "Deployments happen on Fridays"),
        ("The project uses PostgreSQL as its database", "Our database is PostgreSQL"),
        ("User lives in Berlin", "The user's home is in Berlin"),
        ("Tests are run with pytest", "We run the tests with pytest"),
        ("The meeting with Carla is on Tuesday at 10", "Meeting with Carla: Tuesday at 10"),
        ("User wants answers to be short", "The user wants short answers"),
        ("The API key is stored in Vault", "API keys are kept in Vault"),
        ("Use tabs for indentation in Go files", "Go files are indented with tabs"),
        ("Dana's dog is called Rex", "Dana has a dog named Rex"),
        ("The user is a vegetarian", "User is vegetarian"),
    ),
    Relation.CONFLICT: (
        ("The user prefers dark mode", "The user prefers light mode"),
        ("Alice's birthday is on 3 May", "Alice's birthday is on 5 May"),
        ("The staging server listens on port 8080", "The staging server listens on port 9090"),
        ("Ben is allergic to peanuts", "Ben is not allergic to peanuts"),
        ("We deploy on Fridays", "We never deploy on Fridays"),
        ("The project uses PostgreSQL as its database", "The project uses MySQL as its database"),
        ("User lives in Berlin", "User lives in Hamburg"),
        ("User lives in Berlin", "User moved to Hamburg"),
        ("Tests are run with pytest", "Tests are run with unittest"),
        ("The meeting with Carla is on Tuesday at 10", "The meeting with Carla is on Wednesday at 14"),
        ("User wants answers to be short", "User wants answers to be long"),
        ("The API key is stored in Vault", "The API key is stored in the environment"),
        ("Use tabs for indentation in Go files", "Use four spaces for indentation in Go files"),
        ("Dana's dog is called Rex", "Dana's dog is called Bello"),
        ("The user is a vegetarian", "The user is not a vegetarian any more"),
        ("Erik works at Siemens", "Erik works at Bosch"),
        ("The release is planned for March", "The release is planned for April"),
        ("User's favourite colour is blue", "User's favourite colour is green"),
        ("The rate limit is 100 requests a minute", "The rate limit is 250 requests a minute"),
    ),
    Relation.OTHER: (
        ("The user prefers dark mode", "The user prefers Vim to Emacs"),
        ("Alice's birthday is on 3 May", "Ben's birthday is on 7 June"),
        ("Alice's birthday is on 3 May", "Alice works at Siemens"),
        ("The staging server listens on port 8080", "The production server listens on port 443"),
        ("The staging server listens on port 8080", "The staging server runs Debian 12"),
        ("Ben is allergic to peanuts", "Carla is allergic to cats"),
        ("We deploy on Fridays", "We hold the retrospective on Mondays"),
        ("The project uses PostgreSQL as its database", "The project uses Redis as its cache"),
        ("User lives in Berlin", "User works in Potsdam"),
        ("User lives in Berlin", "User speaks German"),
        ("Tests are run with pytest", "Tests must not use the network"),
        ("The meeting with Carla is on Tuesday at 10", "The meeting with Dana is on Thursday at 9"),
        ("Dana's dog is called Rex", "Dana's cat is called Minka"),
        ("Erik works at Siemens", "Fiona works at Bosch"),
        ("The release is planned for March", "The conference is planned for April"),
        ("User's favourite colour is blue", "User's favourite food is pasta"),
        ("The rate limit is 100 requests a minute", "The upload limit is 20 MB"),
        ("The API key is stored in Vault", "The API is documented with OpenAPI"),
        ("Use tabs for indentation in Go files", "Use gofmt before each commit"),
        ("User wants answers to be short", "User wants answers in German"),
    ),
}


def judged() -> None:
    """Print a table, and the pairs judged differently."""
    with tempfile.TemporaryDirectory() as folder:
        model = load(EmbedSettings(model=PACKAGED[1]), "cpu", Path(folder))

        def vectors(texts: list[str]) -> Vectors:
            return model.encoder.compute(model.tokenizer.encode(texts, TextKind.PASSAGE).ids)

        print(
            f"{'a person says':14} {'pairs':>5} {'by vectors and words':>21} {'by words alone':>15} {'may replace':>12}"
        )
        for wanted, pairs in PAIRS.items():
            one, other = (vectors([pair[n] for pair in pairs]) for n in (0, 1))
            cosines = (one * other).sum(axis=1)
            found = [relation(*pair, float(cosine)) for pair, cosine in zip(pairs, cosines, strict=True)]
            alone = [relation(*pair) for pair in pairs]
            named = sum(
                updates(later, earlier, said, float(cosine))
                for (earlier, later), said, cosine in zip(pairs, found, cosines, strict=True)
            )
            counts = f"{len(pairs):>5} {found.count(wanted):>21} {alone.count(wanted):>15} {named:>12}"
            print(f"{wanted.name.lower():14} {counts}")
            for pair, cosine, said in zip(pairs, cosines, found, strict=True):
                if said is not wanted:
                    print(f"    {said.name.lower():9} {cosine:.2f}  {pair[0]} | {pair[1]}")
