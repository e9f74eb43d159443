"""Where each part lives that a run can choose: a table for each family, from a name in RUN.toml to
"module:thing". What a part must do is in `protocols`, how a name becomes one in `plugins`.

Outside code is named the same way, as "package.module:thing".
"""

from __future__ import annotations

ENGINES = {
    "hf": "services.inference.engines.hf.engine:build",
    "vllm": "services.inference.engines.vllm.build:build",
    "fake": "services.inference.engines.fake:build",
}
ENDPOINTS = {
    "openai": "services.inference.openai.endpoint:build",
}
"""A process answers there what others ask."""
ALONE = ("vllm",)
"""Engines that hold one version at a time, and a whole device: held-out answers are graded after
training, one version after another."""
ADAPTERS = {
    "lora": "pipeline.model.lora:lora",
}
TRANSPORTS = {
    "shm": "pipeline.weights.shm:ShmTransport",
    "files": "pipeline.weights.files:build",
    "redis": "pipeline.weights.redis:build",
    "nccl": "pipeline.weights.nccl:Nccl",
    "ipc": "pipeline.weights.ipc:Ipc",
}
DATASETS = {
    "jsonl": "services.prompting.datasets.jsonl:Jsonl",
    "parquet": "services.prompting.datasets.parquet:Parquet",
    "hf": "services.prompting.datasets.hf:HuggingFace",
    "reasoning_gym": "services.prompting.datasets.gym:ReasoningGym",
}
SCORERS = {
    "exact": "services.scoring.scorers.text.strings:exact",
    "regex": "services.scoring.scorers.text.strings:Regex",
    "choice": "services.scoring.scorers.text.choice:Choice",
    "numeric": "services.scoring.scorers.text.numeric:Numeric",
    "json_schema": "services.scoring.scorers.text.json_schema:JsonSchema",
    "format": "services.scoring.scorers.text.layout:Format",
    "math": "services.scoring.scorers.math.scorer:Math",
    "reasoning_gym": "services.scoring.scorers.text.gym:ReasoningGym",
    "teacher": "services.scoring.scorers.models.teacher:Teacher",
    "kl_penalty": "services.scoring.scorers.models.teacher:KlPenalty",
    "judge": "services.scoring.scorers.remote.judge:Judge",
    "http": "services.scoring.scorers.remote.http:Http",
    "overlong": "services.scoring.scorers.text.overlong:overlong",
    "reward_model": "services.scoring.scorers.models.reward_model:RewardModel",
    "code": "services.scoring.scorers.code.scorer:Code",
}
SHAPING = ("overlong", "kl_penalty")
"""Scorers that add to a reward, and whose outcome is always 0."""
TEACHING = "teacher"
"""Likewise; but alone it makes a run of distillation."""
ADVANTAGES = {
    "grpo": "services.training.advantages:grpo",
    "dr_grpo": "services.training.advantages:dr_grpo",
    "rloo": "services.training.advantages:rloo",
    "max_rl": "services.training.advantages:max_rl",
    "none": "services.training.advantages:none",
    "reinforce_pp_baseline": "services.training.baselines:ReinforcePP",
    "ema": "services.training.baselines:Ema",
}
LOSSES = {
    "cispo": "services.training.losses:cispo",
    "ppo": "services.training.losses:ppo",
    "gspo": "services.training.losses:gspo",
    "topr": "services.training.losses:topr",
    "tis_pg": "services.training.losses:tis_pg",
    "kimi": "services.training.losses:kimi",
    "dppo_tv": "services.training.losses:dppo_tv",
    "ipo": "services.training.losses:ipo",
    "sapo": "services.training.losses:sapo",
    "m2po": "services.training.losses:M2PO",
    "rollout_is": "services.training.losses:rollout_is",
    "reinforce": "services.training.losses:reinforce",
}
CORRECTIONS = {
    "none": "services.training.corrections:none",
    "tis": "services.training.corrections:tis",
    "icepop": "services.training.corrections:icepop",
    "mask_geometric": "services.training.corrections:mask_geometric",
    "mask_k": "services.training.corrections:mask_k",
    "opsm": "services.training.corrections:opsm",
    "decoupled": "services.training.corrections:decoupled",
}
DIVERGENCES = {
    "k2": "services.training.divergence:k2",
    "k3": "services.training.divergence:k3",
}
BACKENDS = {
    "torch": "services.training.backends.torch:TorchBackend",
    "deepspeed": "services.training.backends.deepspeed:DeepSpeedBackend",
}
SINKS = {
    "tensorboard": "services.training.sinks.tensorboard:TensorBoard",
    "wandb": "services.training.sinks.wandb:Wandb",
}
