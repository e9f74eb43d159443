"""An outside harness: samples from a run's policy by OpenAI's client, with all that training needs.

Start a run with an endpoint, and read its address from the log of the engine:

    sluice up examples/demo.toml --set inference.endpoint=4
    grep /v1 runs/demo/logs/inference*.log

    pip install openai
    python examples/harness.py http://127.0.0.1:PORT/v1 "c3a1b2=2"

Of each answer it prints a line of JSON: the ids of prompt and answer, the log-prob of each token
as it was sampled, and the spans: so many tokens by this version of the weights, on this boot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from openai import OpenAI

SAMPLES = 4
RETRIES = 20
"""A full endpoint says 429, and when to come again: the client does so by itself."""


def sample(client: OpenAI, model: str, prompt: str) -> Iterator[dict[str, Any]]:
    """Several answers to a prompt, ready to be graded and trained on."""
    reply = client.completions.create(
        model=model, prompt=prompt, n=SAMPLES, extra_body={"return_token_ids": True}
    )
    for choice in reply.choices:
        found = choice.model_dump()
        assert sum(tokens for _, tokens, _ in found["spans"]) == len(found["token_ids"])
        yield {
            "prompt_ids": found["prompt_token_ids"],
            "ids": found["token_ids"],
            "logprobs": found["token_logprobs"],
            "spans": found["spans"],
            "finish": choice.finish_reason,
            "text": choice.text,
        }


def main() -> None:
    """URL, then prompts."""
    url, *prompts = sys.argv[1:]
    client = OpenAI(base_url=url, api_key="none", max_retries=RETRIES)
    [policy] = client.models.list().data
    for prompt in prompts:
        for answer in sample(client, policy.id, prompt):
            print(json.dumps(answer))
    print(f"{policy.id}, streamed:", end=" ", file=sys.stderr)
    for event in client.completions.create(model=policy.id, prompt=prompts[0], stream=True):
        print(event.choices[0].text, end="", flush=True, file=sys.stderr)
    print(file=sys.stderr)


if __name__ == "__main__":
    main()
