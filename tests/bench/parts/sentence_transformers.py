"""Runs sentence-transformers in a separate process.

It reads JSON lines (a list of texts, and whether their vectors are wanted) and writes JSON lines (the time in seconds,
and the vectors). `embed_peers` starts it with the interpreter of its environment.
"""

import json
import os
import sys
import time

import torch
from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]  # the peer's environment has it

torch.set_num_threads(int(os.environ["PEER_THREADS"]))
device, dtype = os.environ.get("PEER_DEVICE", "cpu"), os.environ.get("PEER_DTYPE", "float32")
model = SentenceTransformer(sys.argv[1], device=device, local_files_only=True, model_kwargs={"dtype": dtype})
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
print("ready", file=out, flush=True)
for line in sys.stdin:
    texts, wanted = json.loads(line)
    began = time.perf_counter()
    vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    taken = time.perf_counter() - began
    print(json.dumps([taken, vectors.tolist() if wanted else None]), file=out, flush=True)
