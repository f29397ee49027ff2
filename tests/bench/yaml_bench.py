"""The time to get and set one value in a file of 1 MB, compared with a round trip of ruamel.yaml in the same run.

Run: python -m tests.bench.yaml_bench (without ruamel.yaml, its column is left out)
"""

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

from services.runtime.roots import Roots
from services.yaml.operations import SetEdit
from services.yaml.syntax.parser import parse
from services.yaml.yaml_files import YamlFiles

SIZE = 1_000_000


def services(size: int) -> str:
    """Return a typical file: nested mappings, lists, comments, quotes, flow and block scalars."""
    chance = random.Random(1)
    out: list[str] = []
    length = 0
    while length < size:
        number = len(out)
        out.append(
            f"# service {number}\n"
            f"service{number}:\n"
            "  metadata:\n"
            f'    name: "web-{number}"   # public\n'
            "    labels:\n"
            "      app.kubernetes.io/name: web\n"
            "      tier: 'front'\n"
            "  spec:\n"
            f"    replicas: {chance.randint(1, 9)}\n"
            f"    image: nginx:1.{chance.randint(0, 30)}.0\n"
            f"    url: https://example.com/a/b?c={number}\n"
            '    args: [--flag, "-x", {a: 1, b: 2}]\n'
            "    env:\n"
            "      - name: FOO\n"
            "        value: bar baz qux\n"
            "      - name: BAR\n"
            '        value: "some longer string value here"\n'
            "    script: |\n"
            "      echo hello\n"
            "      exit 0\n\n"
            "    list:\n"
            "    - a\n"
            "    - b\n"
        )
        length += len(out[-1])
    return "".join(out)


def seconds(work: Callable[[], object], rounds: int = 1, clock: Callable[[], float] = time.process_time) -> float:
    """Return the median time of some rounds; processor time by default, so that a busy machine gives the same ratio."""
    times = []
    for _ in range(rounds):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def ruamel_round_trip(text: str) -> None:
    from ruamel.yaml import YAML

    yaml = YAML()
    data = yaml.load(text)
    data["service500"]["spec"]["replicas"] = 77
    yaml.dump(data, StringIO())


def main() -> None:
    text = services(SIZE)
    rows = [{"id": n, "name": f"n{n}", "tags": ["a", "b"], "v": {"x": 1.5, "y": None}} for n in range(7000)]
    flat = "".join(f"key{n}: value {n}\n" for n in range(45_000))
    for name, sample in (("services", text), ("json", json.dumps(rows, indent=2)), ("flat", flat)):
        print(f"parse {name:9} {seconds(partial(parse, sample), 3) / len(sample) * 1e6:7.3f} s/MB")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "f.yaml"
        path.write_text(text)
        cold = YamlFiles(Roots((directory,)))
        get_and_set = seconds(
            lambda: (
                cold.get("f.yaml", "service500.spec.image"),
                cold.edit("f.yaml", SetEdit("service500.spec.replicas", "77")),
            )
        )
        print(f"get and set, nothing cached {get_and_set:7.3f} s")
        again = seconds(lambda: cold.get("f.yaml", "service500.spec.image"), 200, time.perf_counter)
        print(f"get again (wall time)       {again * 1000:7.3f} ms")
        numbers = iter(range(100, 1000))
        change = seconds(
            lambda: cold.edit("f.yaml", SetEdit("service500.spec.replicas", str(next(numbers)))),
            20,
            time.perf_counter,
        )
        print(f"set again (wall time)       {change * 1000:7.3f} ms")
    if find_spec("ruamel.yaml") is None:
        print("ruamel.yaml is not installed: no comparison")
        return
    theirs = seconds(lambda: ruamel_round_trip(text))
    print(f"ruamel.yaml round trip      {theirs:7.3f} s, {theirs / get_and_set:.1f} times a cold get and set")


if __name__ == "__main__":
    main()
