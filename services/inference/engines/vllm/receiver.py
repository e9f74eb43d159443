"""What a worker of vLLM's has beside its own where versions come in directly. † torch

vLLM imports this module in each worker before the model is loaded, so that the back ends of the
direct transports are known there by name.
"""

from __future__ import annotations

import torch

import pipeline.weights.ipc  # noqa: F401  registers its back end
from services.inference.engines.vllm.guard import watch


class Extension:
    """What the service may ask of a worker."""

    def sluice_device(self) -> str:
        """By which name every process knows the device that holds this worker's model."""
        if not torch.cuda.is_available():
            return "cpu"
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


watch()
