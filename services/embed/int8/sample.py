"""Texts of the kinds that people keep, on which the encoder in 8 bits is set up, and others on which it is checked."""

from __future__ import annotations

CALIBRATION = (
    "# Meeting notes\n\nWe agreed to move the nightly backup from two to four in the morning, since the "
    "database is compacted at two and both together fill the disk's queue. Anna writes the migration, Tom "
    "tests the restore on the spare machine, and we look at the figures again on Thursday.\n\n- [ ] update "
    "the runbook\n- [x] order disks",
    "A compiler turns a program into another form in several passes. The front end reads the text and "
    "builds a tree, the middle simplifies it and moves work out of loops, and the back end chooses "
    "instructions and registers. Each pass can be tested alone, because what it takes and what it leaves "
    "are written down.",
    'def read_lines(path: Path, *, encoding: str = "utf-8") -> Iterator[str]:\n    with '
    "path.open(encoding=encoding) as file:\n        for number, line in enumerate(file, "
    'start=1):\n            if not line.endswith("\\n"):\n                raise '
    'ValueError(f"{path}:{number}: the last line is cut")\n            yield line.rstrip()',
    "The experiment measured the pressure along a flat plate at supersonic speed. Where the boundary layer "
    "was laminar the heat transfer agreed with theory within five percent; behind the shock it rose to "
    "three times that value and fell again over a length of about ten thicknesses of the layer.",
    "2024-03-17T08:41:09.113Z ERROR worker-7 request 5f3a9c21 failed after 3 attempts: "
    "ConnectionResetError(104, 'Connection reset by peer')\n2024-03-17T08:41:09.120Z INFO worker-7 back "
    "off 0.8 s\n2024-03-17T08:41:10.002Z INFO worker-7 request 5f3a9c21 accepted, 18,204 bytes in 41 ms",
    "Der Antrag ist bis zum 31. Oktober schriftlich einzureichen. Fehlende Unterlagen können innerhalb von "
    "vier Wochen nachgereicht werden; danach gilt er als zurückgezogen. Über Ausnahmen entscheidet die "
    "Leiterin der Abteilung, gegen deren Bescheid Widerspruch möglich ist.",
    "Patients who received the vaccine had a lower rate of infection than those who received placebo (2.1% "
    "against 6.8%, hazard ratio 0.31, 95% confidence interval 0.22 to 0.43). Adverse events were mild and "
    "short. Antibodies fell by half in about ninety days, but T cells against the protein were found for "
    "more than a year.",
    "| name | port | owner | since |\n|---|---:|---|---|\n| gateway | 8443 | platform | 2021-02-01 |\n| "
    "billing | 9012 | finance | 2019-11-30 |\n| search | 9200 | data | 2022-07-15 |\n| mail | 587 | "
    "platform | 2018-05-04 |",
    '{"id": 48213, "kind": "invoice", "lines": [{"item": "A-100", "count": 3, "price": 19.9}, {"item": '
    '"B-7", "count": 1, "price": 249.0}], "paid": false, "due": "2025-01-31", "notes": null}',
    "Boil the potatoes in salted water until a knife goes in without resistance, drain them and let them "
    "steam dry. Fry onions and bacon slowly, add vinegar, broth and mustard, and pour it over the slices "
    "while they are warm. Chives at the end. It is better after an hour, and best on the next day.",
    '#!/bin/sh\nset -eu\nfor file in "$@"; do\n    size=$(stat -c %s "$file")\n    [ "$size" -gt 0 ] || { '
    'echo "$file is empty" >&2; exit 1; }\n    sha256sum "$file" >> sums.txt\ndone\nsort -o sums.txt '
    'sums.txt && tar -czf release.tar.gz sums.txt "$@"',
    "Why does the service answer slowly after a restart? The first requests fill the cache, and until then "
    "each of them goes to the disk. You can warm it by hand with the command below, or set `preload: "
    "true`, which takes about a minute and 400 MB of memory. See also [[caching]] and [the "
    "manual](https://example.org/manual#warm).",
    "La bibliothèque ouvre à neuf heures du matin. Les livres peuvent être gardés pendant trois semaines, "
    "et rendus dans n'importe quelle succursale de la ville. Pour les journaux anciens, il faut demander à "
    "l'accueil la veille, car ils sont conservés dans un autre bâtiment.",
    "She closed the window before the storm came over the hill. The old dog lifted his head, listened for "
    'a while and went back to sleep. "It will pass," her father said, without looking up from his '
    "newspaper, and as always when he said so, it took until the morning.",
    "SELECT customer.id, COUNT(*) AS orders, SUM(total) AS spent FROM customer JOIN invoice ON "
    "invoice.customer = customer.id WHERE invoice.day >= DATE '2023-01-01' AND invoice.state <> 'void' "
    "GROUP BY customer.id HAVING SUM(total) > 1000 ORDER BY spent DESC LIMIT 50;",
    "The tenant shall keep the premises in good repair and shall not make alterations without the prior "
    "written consent of the landlord, which shall not be unreasonably withheld. The deposit is returned "
    "within thirty days after the end of the lease, less the cost of any damage beyond ordinary wear.",
    "0.0173 12.5 -3.882e-05 1 2 3 5 8 13 21 34 55 89 144 233 377 610 987 1597 2584 4181 6765 10946 17711 "
    "28657 46368 75025 121393 196418 317811 514229 832040 1346269 2178309 3524578 5702887 9227465 14930352 "
    "24157817",
    "Gradient descent follows the slope of the loss in small steps. With a step that is too large it jumps "
    "across the valley, with one that is too small it never arrives. Momentum keeps part of the last step, "
    "and adaptive methods such as Adam choose a step for each weight from the size of its recent gradients.",
    "東京の天気は晴れ、最高気温は二十八度です。明日は雨が降るでしょう。 Москва — столица России, население "
    "более двенадцати миллионов человек. 北京是中国的首都。 El tren sale a las ocho y media.",
    "----------------------------------------\n======== RESULTS ========\n[OK] [OK] [OK] [FAILED] [OK]\n"
    "........................................\n>>> >>> >>>\n!!! ??? *** ### $$$ %%% &&& @@@ ~~~ ^^^",
    "server:\n  host: 0.0.0.0\n  port: 8080\n  tls:\n    certificate: /etc/ssl/server.pem\n    key: "
    "/etc/ssl/server.key\ndatabase:\n  url: postgres://app@db.internal:5432/app\n  pool: {min: 2, max: "
    "20}\nfeatures: [search, export]\n",
    'Traceback (most recent call last):\n  File "main.py", line 88, in <module>\n    '
    'run(parse(sys.argv[1:]))\n  File "main.py", line 41, in run\n    value = table[key]\nKeyError: '
    "'timeout_ms'\n\nDuring handling of the above exception, another exception occurred:",
    "The river rises in the southern mountains at a height of 2,300 metres, flows north through three "
    "lakes and reaches the sea after 640 kilometres. In the nineteenth century it was straightened for "
    "shipping; since 1990 parts of the old bed have been opened again, and salmon have returned to two of "
    "its tributaries.",
    "word " * 60,
)
"""The encoder in bf16 is watched on these, and the scales of 8 bits made from what is seen."""

CHECK = (
    "We tried the new index on the archive of the city's newspapers. Most questions were answered in a "
    "tenth of a second, and those with a common name took three times as long. What nobody had expected "
    "was that people asked mainly for the weather on the day of their birth.",
    "class Queue(Generic[T]):\n    def __init__(self, limit: int) -> None:\n        self._items: deque[T] "
    "= deque()\n        self._limit = limit\n\n    def put(self, item: T) -> None:\n        if "
    'len(self._items) >= self._limit:\n            raise Full(f"{self._limit} wait already")\n        '
    "self._items.append(item)",
    "Thin films of the oxide were grown at 450 degrees on sapphire. X-ray diffraction shows a single "
    "phase, and the resistance falls by four orders of magnitude at the transition. Doping with one "
    "percent of tungsten lowers the temperature of the transition by about twenty degrees.",
    "Die Wanderung beginnt am Bahnhof und führt zuerst durch den Wald hinauf zur Kapelle. Oben sieht man "
    "bei klarem Wetter bis zu den Alpen. Für den Rückweg nimmt man besser die Straße, denn der Pfad am "
    "Bach ist nach Regen glatt.",
    "Nov 22 06:25:01 host kernel: [81234.551] eth0: link up, 1000 Mbps, full duplex\nNov 22 06:25:03 host "
    "dhclient: bound to 10.0.3.17 -- renewal in 40211 seconds\nNov 22 06:25:04 host sshd[991]: Server "
    "listening on :: port 22.",
    "How do I undo the last commit without losing my changes? Use `git reset --soft HEAD~1`: the commit "
    "goes, and what was in it stays staged. With `--mixed` it stays in the files alone; `--hard` throws it "
    "away, so be careful.",
)
"""On these the two encoders are compared before the one in 8 bits is used."""
