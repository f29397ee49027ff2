"""The files that the tasks are about: notes, code, configurations, documents and downloads, always the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.unit.documents.formats import docx
from tests.unit.documents.pdfs import pdf_of

_CONTRACT = "".join(
    f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
    for text in ("Service contract", "Either side may end it with a notice period of eleven weeks.")
)

NOTES = {
    "index": "# Index\n\n- [[kubernetes-networking]]\n- [[retry-budget]]\n- [[pelican]]\n- [[deploy-guide]]\n",
    "retry-budget": "# Retry budget\n\nWe stop to retry after four attempts.\n\n## Alternatives\n\nA queue was too"
    " slow, and hedged requests were rejected since they double the load.\n",
    "kubernetes-networking": "# Kubernetes networking\n\nThe cluster's network plugin is Cilium; Calico was replaced in"
    " spring. What happens if a pod cannot be reached: [[retry-budget]].\n",
    "deploy-guide": "# Deploy guide\n\n## Roll-out\n\nOne zone at a time.\n\n## Backups\n\nNightly at 02:40, to the"
    " bucket in Reykjavik.\n\n## Contacts\n\nAsk the platform team.\n",
    "meeting-2026-01-14": "---\ndate: 2026-01-14\n---\n# Budget meeting\n\nThe budget of marketing is 18,000 euros.\n",
    "meeting-2026-04-02": "---\ndate: 2026-04-02\n---\n# Spring meeting\n\nThe budget of research is 7,000 euros.\n",
    "todo": "# To do\n\n- water the plants\n- call the bank\n",
    "lisbon": "---\ntags: [travel, portugal]\n---\n# Lisbon\n\nThe tram 28 goes from Graca to Estrela."
    " See [[lost-page]].\n",
    "garden": "# Garden\n\nTulips come up in March, beans in May.\n",
    "pelican": "# Pelican\n\nAn idea for a bird feeder made from a bottle.\n",
    "bread": "# Bread\n\nMix 500 g of rye flour, 350 g of water, 10 g of salt and the sourdough. Let it rest for twelve"
    " hours in a bowl below a cloth. Bake it at 240 degrees for fifty minutes with steam.\n",
    "bread-copy": "# Bread\n\nMix 500 g of rye flour, 350 g of water, 10 g of salt and the sourdough. Let it rest for"
    " twelve hours in a bowl below a cloth. Bake it at 240 degrees for fifty minutes with steam.\n",
    "tcp-timeouts": "# TCP timeouts\n\nA TCP connection that is idle is closed by the firewall after five minutes; send"
    " keep-alive packets each minute, and set a timeout for reading from the socket.\n",
    "socket-deadlines": "# Socket deadlines\n\nThe firewall closes TCP connections that are idle for five minutes. So"
    " keep them alive with packets each minute, and set a timeout whenever you read from the socket.\n",
}

FILES: Mapping[str, str | bytes] = {
    "README.md": "# Tern\n\nA small web server.\n\n## Installing\n\nRun `make bootstrap`, then `make serve`.\n",
    **{f"notes/{name}.md": text for name, text in NOTES.items()},
    "src/app/main.py": "from app.config import parse_config\nfrom app.server import serve\n\n\ndef main():\n"
    '    serve(parse_config("app.yaml"))\n',
    "src/app/config.py": '"""Reads the configuration."""\n\n\ndef parse_config(path):\n    # TODO: urgent, rotate the'
    " keys\n    return open(path).read()\n",
    "src/app/retry.py": '"""Retries."""\n\n\ndef retry(call):\n    delay_s = 0.25\n    for attempt in range(4):\n'
    "        if call(attempt):\n            return True\n        delay_s *= 1.7\n    return False\n",
    "src/app/server.py": '"""Serves."""\n\nTIMEOUT_S = 30\n\n\ndef serve(config):\n    print(config, TIMEOUT_S)\n',
    "src/tests/test_config.py": "from app.config import parse_config\n\n\ndef test_it():\n    assert parse_config\n",
    "src/sql/schema.sql": "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL);\n",
    "config/app.yaml": "server:\n  host: 0.0.0.0\n  port: 8443 # behind the proxy\n",
    "config/limits.yaml": "pool:\n  # one for each core\n  workers: 4\n",
    "config/users.yaml": "admins:\n  - ada\n  - bob\nguests: []\n",
    "config/flags.yaml": "beta: true\ndebug: false\n",
    "config/theme.yaml": "colour: teal\nfont: serif\n",
    "config/backup.yaml": "retention: 90 # days, as the auditors want it\ntarget: tape\n",
    "config/deploy.yaml": "region: oslo\nzones: 3\n",
    "config/ci.yaml": "image: debian\nminutes: many\n",
    "docs/invoice-march.pdf": pdf_of(["Invoice 2026-03", "Hosting in March", "Total: 1,482.50 EUR"]),
    "docs/contract.docx": docx(_CONTRACT),
    "downloads/archive.bin": bytes(range(256)) * 286,
    "downloads/movie.mp4": b"\x00\x00\x00\x18ftypmp42" * 25_000,
    "downloads/beach.jpg": b"\xff\xd8\xff\xe0" * 10_250,
    "downloads/sunset.jpg": b"\xff\xd8\xff\xe1" * 13_000,
    "downloads/mountain.jpg": b"\xff\xd8\xff\xe2" * 9_000,
    "downloads/report.txt": "The numbers of the quarter are good.\n" * 300,
    "downloads/report (1).txt": "The numbers of the quarter are good.\n" * 300,
    "downloads/scan0001.txt": "Lease of the flat in the second floor.\n",
    "downloads/receipt.txt": "One lamp, 49.90\n",
    "old/scratch.txt": "nothing of use\n",
    "old/thesis.txt": "On the migration of terns.\n",
    "old/poem.txt": "Roses are red.\n",
}

ABSENT = ("old/thesis.txt", "old/poem.txt")
"""Files that are in the trash when the tasks begin."""

CHATS = (
    ("atlas", "How shall people log in to Atlas, by password or otherwise?", "Login with passkeys, no passwords."),
    (
        "home",
        "Which city is good for the family?", "One with an international school.",
        "Then the move to Lisbon is decided.", "Good, Lisbon it is.",
    ),
    ("home", "Which tyres does the cargo bike need?", "20 x 2.15 in front, 26 x 2.15 behind."),
)  # fmt: skip
"""Conversations: the project, then questions and answers in turn."""

KNOWN = (
    ("the user", "person", "The user's editor is Helix with the theme solarized-dusk"),
    ("standup", "meeting", "The standup takes place at 10:15 in room Mercury"),
    ("car", "thing", "The user parks the car on level B3 of the garage"),
    ("invoices", "thing", "Invoices are sent to finance@corp.example"),
)
"""What a server for memory knows at the beginning: name, type and observation of each entity."""


def make(root: Path) -> None:
    """Write all files, and store them in a git repository."""
    restore(root, absent=())
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in (
        ("NAME", "Ada"), ("EMAIL", "ada@corp.example"), ("DATE", "2026-01-01T00:00:00Z"))}  # fmt: skip
    for command in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "Begin")):
        subprocess.run(["git", *command], cwd=root, check=True, env={**os.environ, **who})


def restore(root: Path, absent: tuple[str, ...] = ABSENT) -> int:
    """Make the files what they are at the beginning; return how many were different."""
    different = 0
    for path in (each for each in root.rglob("*") if each.is_file() and ".git" not in each.parts):
        name = str(path.relative_to(root))
        if name not in FILES or name in absent:
            path.unlink()
            different += 1
    for name, content in FILES.items():
        data = content if isinstance(content, bytes) else content.encode()
        path = root / name
        if name not in absent and not (path.is_file() and path.read_bytes() == data):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            different += 1
    return different
