"""A trainer's side of the weights, in a process of its own: sends a version for each line that it
reads, and prints the manifest. † torch

    python -m benchmarks.gpu_check.publish SPEC MODEL DTYPE
"""

from __future__ import annotations

import json
import sys

import msgspec
import torch

from benchmarks.gpu_check.serving import RUN, manifest_of
from pipeline.model.fingerprint import named_parameters
from pipeline.model.load import DTYPES, load_model
from pipeline.weights.origin import Origin


def main() -> None:
    """Until the input ends; each version differs from the one before it in one tensor."""
    spec, path, dtype = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    model = load_model(path, dtype=dtype)  # type: ignore[arg-type]
    named = [(n, t.detach().to("cpu", DTYPES[dtype])) for n, t in named_parameters(model)]
    transport = Origin(spec, RUN).transport()
    for version, _ in enumerate(sys.stdin, start=1):
        with torch.no_grad():
            named[-1] = (named[-1][0], named[-1][1] * 1.02)
        manifest = manifest_of(transport, version, named)
        print(msgspec.msgpack.encode(manifest).hex(), flush=True)


if __name__ == "__main__":
    main()
