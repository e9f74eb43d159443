"""What a GPU owner runs first: `__main__` says what is checked."""

from importlib.util import find_spec

REMEDY = (
    "run it by the Python of an environment with vLLM: make gpu-check PYTHON=VENV/bin/python"
    " (in the clone, VENV/bin/pip install -e '.[vllm,demo]')"
)

if find_spec("msgspec") is None:  # another Python than Sluice was installed for
    raise SystemExit(f"gpu-check needs msgspec: {REMEDY}")
