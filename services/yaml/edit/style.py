"""How a file is written: its line break, indent unit and sequence style, so that new lines look like their
neighbours."""

from collections import Counter
from functools import cached_property
from typing import Final

from services.yaml.syntax.events import MAPPING, SEQUENCE
from services.yaml.syntax.tokens import BREAK
from services.yaml.tree import Tree

_SAMPLE: Final = 4000  # events looked at: a file that changes its style after that many is read by its beginning


class Style:
    """The habits of one parsed file; lengths are in columns."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def line_break(self, at: int) -> str:
        """The break to write near an offset: that of its own line, else of the line before, else LF."""
        text = self.tree.text
        found = BREAK.search(text, self.tree.line_stop(at)) if at < len(text) else None
        if found is None:
            start = self.tree.line_start(at)
            if text.startswith("\r\n", start - 2) and start > 1:
                return "\r\n"
            return text[start - 1] if start else "\n"
        return found.group()

    @cached_property
    def _steps(self) -> tuple[Counter[int], Counter[int]]:
        """How far block mappings, and block sequences, are indented under the mapping that holds them."""
        tree = self.tree
        stream = tree.stream
        mappings: Counter[int] = Counter()
        sequences: Counter[int] = Counter()
        for index in range(min(len(stream.events), _SAMPLE)):
            if stream.events[index][0] != MAPPING or not tree.is_block_collection(index):
                continue
            column = tree.column(index)
            at = index + 1
            end = min(stream.closes[index], _SAMPLE)
            while at < end:
                value = stream.after(at)
                if tree.is_block_collection(value) and tree.line_start(stream.bodies[value]) > stream.stops[at]:
                    step = tree.column(value) - column
                    (sequences if stream.events[value][0] == SEQUENCE else mappings)[step] += 1
                at = stream.after(value)
        return mappings, sequences

    @cached_property
    def unit(self) -> int:
        """The indentation of a nested mapping."""
        mappings, sequences = self._steps
        for counter in (mappings, Counter({step: count for step, count in sequences.items() if step})):
            if counter:
                return counter.most_common(1)[0][0]
        return 2

    @cached_property
    def sequence_step(self) -> int:
        """The indentation of a sequence under its key: 0 where the file does not indent them."""
        _, sequences = self._steps
        return sequences.most_common(1)[0][0] if sequences else self.unit
