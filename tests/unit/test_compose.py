"""What can be known of the images and of compose.yaml without an engine.

What they do under one is `tests/compose`.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.metrics import Metrics
from pipeline.serve import Http
from services.process import IMPORT_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
GPU = [name for name, service in SERVICES.items() if "deploy" in service]
UNITS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """Of a duration such as 20m."""
    return int(text[:-1]) * UNITS[text[-1]]


def start_period(service: str) -> int:
    """That of compose.yaml, or else the image's."""
    told = SERVICES[service].get("healthcheck", {}).get("start_period")
    return seconds(told or re.findall(r"--start-period=(\w+)", DOCKERFILE)[0])


def longest(service: str) -> float:
    """Seconds to be ready at most: for its libraries, its model, and a trainer's replay."""
    source = (ROOT / "services" / service / "build.py").read_text()
    limits = re.findall(r'life\.long\("model", (\d+)\)', source)
    assert limits, f"{service} declares no limit for its model"
    replay = re.findall(r"^LONGEST_ACT_SECONDS = ([\d.]+)", source, re.M)
    return IMPORT_SECONDS + sum(map(float, limits + replay))


@pytest.mark.parametrize("service", ["inference", "inference-gpu-0", "training", "training-gpu"])
def test_C111_a_container_may_take_as_long_to_start_as_its_service_may(service: str) -> None:
    assert start_period(service) >= longest(service.partition("-")[0])


def test_C112_containers_with_gpus_have_shared_memory_for_nccl() -> None:
    assert GPU and all(gigabytes(SERVICES[name]["shm_size"]) >= 1 for name in GPU)


def gigabytes(text: str) -> int:
    return int(text.removesuffix("gb"))


def test_C119_no_gpu_is_given_twice_and_none_by_count() -> None:
    devices = [
        device
        for name in GPU
        for device in SERVICES[name]["deploy"]["resources"]["reservations"]["devices"]
    ]
    assert all(d["capabilities"] == ["gpu"] and "count" not in d for d in devices)
    ids = [re.sub(r"\$\{\w+:-(\d+)\}", r"\1", one) for d in devices for one in d["device_ids"]]
    assert len(ids) == len(set(ids)) == 4
    assert not any("deploy" in SERVICES[name] for name in OURS if name not in GPU)


def test_C117_no_shell_stands_before_a_service_and_an_init_reaps() -> None:
    for word in ("ENTRYPOINT", "CMD"):
        assert all(line.startswith("[") for line in re.findall(rf"^{word} (.*)", DOCKERFILE, re.M))
    for name in OURS:
        assert SERVICES[name]["init"] and isinstance(SERVICES[name].get("command", []), list)


def test_a_trainer_is_given_longer_to_stop_than_docker_gives() -> None:
    assert seconds(SERVICES["training"]["stop_grace_period"]) >= 600
    assert SERVICES["training-gpu"]["stop_grace_period"] == "15m"


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3 and all(port.startswith("127.0.0.1:") for port in ports)


def test_every_image_and_every_port_can_be_overridden() -> None:
    for service in SERVICES.values():
        assert service["image"].startswith("${")
        assert all("${" in port for port in service.get("ports", []))


def test_no_container_is_told_to_be_root_or_may_become_it() -> None:
    assert re.findall(r"^USER (.*)", DOCKERFILE, re.M) == ["10001:10001"] * 2
    for name, service in SERVICES.items():
        assert name in OURS or service["user"] not in ("root", "0")
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_container_says_whether_its_service_is_ready_alive_or_dead() -> None:
    state = runpy.run_path(str(ROOT / "docker" / "health.py"))["state"]
    door = Http(Metrics("inference"))
    port = int(door.address.rpartition(":")[2])
    assert state(port) == "alive, not ready: it starts"
    door.trouble = lambda: ""
    assert state(port) == "ready"
    door.healthy = lambda: False
    assert state(port) == "dead: its loop makes no progress"
    door.close()
    assert state(port).startswith("dead, or not begun: ")
