"""An inference service with an endpoint: a real engine and model, a real server, real sockets."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from held_hf import HeldHf
from letter_models import VOCABULARY, save
from openai import OpenAI
from planted_run import PATIENCE_SECONDS, SCORER, Plant, wait_until
from transformers import LlamaForCausalLM

from pipeline.bus.bus import Bus
from pipeline.bus.keys import Keys
from pipeline.life import Life
from pipeline.messages import Beat, Manifest
from pipeline.metrics import Metrics
from pipeline.model.fingerprint import describe_all, fingerprint_of, named_parameters
from pipeline.run import Run
from pipeline.serve import Http
from pipeline.weights.files import FilesTransport
from services.inference.build import build
from services.inference.openai.endpoint import Endpoint
from services.process import open_run

PLACES = 4


class ModelPlant(Plant):
    """A run whose trainer announces these models, the first one before the engine starts."""

    def __init__(
        self, url: str, run: str, models: Mapping[int, LlamaForCausalLM], folder: Path
    ) -> None:
        self.models, self.folder = dict(models), folder
        self.model = save(folder / "model", models[0])
        self.transport = FilesTransport(folder=str(folder), run=run)
        self.url, self.run, self.keys, self.seq = url, run, Keys(run), 0
        self.bus = Bus.connect(url, run)
        open_run(self.bus, self.as_run({}))
        self.bus.groups.lead(1, "training:1")
        self.bus.beat(Beat(service="scoring", instance="scoring", boot=SCORER))
        self.announce(0)

    def announce(self, version: int) -> None:
        named = named_parameters(self.models[version])
        entries = describe_all(named)
        manifest = Manifest(
            version=version,
            step=version,
            epoch=1,
            fingerprint=fingerprint_of(entries),
            location=self.transport.send(version, named, epoch=1),
            tensors=entries,
        )
        self.bus.versions.announce(manifest, min_version=0)

    def as_run(self, inference: Mapping[str, Any], **sections: object) -> Run:
        """Its RUN.toml."""
        whole = {
            "name": self.run,
            "steps": 1,
            "model": {"path": str(self.model)},
            "data": "jsonl",
            "weights": {"use": "files", "folder": str(self.folder)},
            "groups": {"members": 2, "per_step": 4},
            "lag": {"max": 5},
            "sampling": {"max_tokens": 400},
            "inference": {"engine": {"use": "held_hf:build"}, "endpoint": PLACES, **inference},
        }
        return msgspec.convert(whole | sections, Run)


class Served:
    """The service in a thread, and OpenAI's client on it."""

    def __init__(self, plant: ModelPlant, **inference: Any) -> None:
        self.plant, self.metrics = plant, Metrics("inference")
        self.run = plant.as_run(inference)
        self.bus = Bus.connect(plant.url, plant.run)
        self.site = Http(self.metrics)
        self.life = Life(
            self.bus, "inference", "engine", metrics=self.metrics, http=self.site.address
        )
        self.life.start()
        self.service = build(
            self.run, self.bus, life=self.life, metrics=self.metrics, site=self.site
        )
        assert isinstance(self.service.engine, HeldHf) and isinstance(self.site.beside, Endpoint)
        self.engine, self.inbox = self.service.engine, self.site.beside._inbox
        self.client = OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=20)
        self.thread = threading.Thread(target=self.service.run)

    @property
    def url(self) -> str:
        return f"http://{self.site.address}"

    def start(self) -> Served:
        """Until it answers."""
        self.thread.start()
        wait_until(lambda: self.inbox.is_open)
        return self

    def total(self, name: str) -> float:
        return self.metrics.totals()[name]

    def running(self) -> int:
        return self.engine.load.running

    def tokens(self) -> int:
        """In flight, of all."""
        rows = self.engine._rows
        return int((rows.length - rows.start)[: rows.count].sum())

    def close(self) -> None:
        self.life.signal = "SIGTERM"
        self.engine.may_prove.set()
        if self.thread.ident:
            self.thread.join(PATIENCE_SECONDS)
        self.life.end()
        self.client.close()
        self.site.close()
        self.bus.close()


__all__ = ["PLACES", "VOCABULARY", "ModelPlant", "Served"]
