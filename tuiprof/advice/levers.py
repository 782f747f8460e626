"""What training frameworks call a setting: the argument to give where the script does not write the loop itself.

A rule names a lever and what plain PyTorch needs for it. If the step runs in a framework that has an argument for the
lever, that is what to write: the framework makes the loader, the optimizer or the autocast itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tuiprof.model import Trace
from tuiprof.model.trace import cached_on_trace

#: The frameworks, as a session's log names them (``probe/frameworks/trainer_hooks.py``).
TRANSFORMERS, LIGHTNING, ACCELERATE = "transformers", "lightning", "accelerate"

_DDP: Final = "Trainer(strategy=DDPStrategy({}))"
_DDP_KWARGS: Final = "Accelerator(kwargs_handlers=[DistributedDataParallelKwargs({})])"
_NON_BLOCKING: Final = "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))"
_SELF_LOG: Final = (
    "give the value to self.log as a tensor, which stays on the device: Trainer(log_every_n_steps=N) reads it every N "
    "steps, and the progress bar at each refresh (TQDMProgressBar(refresh_rate=N))"
)
_COMPILED_FIRST: Final = "{}, before it is given to Trainer.fit"

#: Lever -> framework -> what to write, with ``{names}`` of values that the rule gives. A framework without an argument
#: for a lever is left out: the script sets it as in plain PyTorch. Names as of transformers 5.24, Lightning 2.6 and
#: accelerate 1.15; where older ones differ, both are named.
LEVERS: Final[Mapping[str, Mapping[str, str]]] = {
    "bfloat16": {
        TRANSFORMERS: "TrainingArguments(bf16=True)",
        LIGHTNING: 'Trainer(precision="bf16-mixed")',
        ACCELERATE: 'Accelerator(mixed_precision="bf16")',
    },
    "cpu-bfloat16": {
        TRANSFORMERS: "TrainingArguments(bf16=True, use_cpu=True)",
        LIGHTNING: 'Trainer(precision="bf16-mixed")',
        ACCELERATE: 'Accelerator(mixed_precision="bf16")',
    },
    "float16": {
        TRANSFORMERS: "TrainingArguments(fp16=True)",
        LIGHTNING: 'Trainer(precision="16-mixed")',
        ACCELERATE: 'Accelerator(mixed_precision="fp16")',
    },
    "tf32": {TRANSFORMERS: "TrainingArguments(tf32=True)"},
    "fused-adamw": {
        TRANSFORMERS: 'TrainingArguments(optim="adamw_torch_fused")',
        LIGHTNING: "in configure_optimizers, {plain}",
    },
    "optimizer": {LIGHTNING: "in configure_optimizers, {plain}"},
    "workers": {
        TRANSFORMERS: "TrainingArguments(dataloader_num_workers={workers}, dataloader_persistent_workers=True)"
    },
    "more-workers": {TRANSFORMERS: "a larger dataloader_num_workers of TrainingArguments"},
    "prefetch": {TRANSFORMERS: "a larger dataloader_prefetch_factor"},
    "persistent-workers": {TRANSFORMERS: "TrainingArguments(dataloader_persistent_workers=True)"},
    "pinned-batches": {
        TRANSFORMERS: (
            'TrainingArguments(dataloader_pin_memory=True, accelerator_config={{"non_blocking": True}})'
        ),
        LIGHTNING: "DataLoader(pin_memory=True): the Trainer moves batches with non_blocking=True",
        ACCELERATE: f"DataLoader(pin_memory=True) and {_NON_BLOCKING}",
    },
    "non-blocking": {
        TRANSFORMERS: 'TrainingArguments(accelerator_config={{"non_blocking": True}})',
        ACCELERATE: _NON_BLOCKING,
    },
    "compile": {
        TRANSFORMERS: "TrainingArguments(torch_compile=True)",
        LIGHTNING: _COMPILED_FIRST.format("torch.compile(model)"),
        ACCELERATE: 'Accelerator(dynamo_backend="inductor")',
    },
    "compile-graphs": {
        TRANSFORMERS: 'TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")',
        LIGHTNING: _COMPILED_FIRST.format('torch.compile(model, mode="reduce-overhead")'),
        ACCELERATE: (
            'Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="inductor", mode="reduce-overhead"))'
        ),
    },
    "batch-size": {TRANSFORMERS: "a larger per_device_train_batch_size"},
    "no-checkpointing": {
        TRANSFORMERS: (
            "TrainingArguments(gradient_checkpointing=False), which newer versions call activation_checkpointing,"
        )
    },
    "logging": {
        TRANSFORMERS: (
            "TrainingArguments(logging_nan_inf_filter=False, logging_steps=N): the filter reads the loss in every "
            "step, logging in every N-th; in your own code keep values on the device between logs"
        ),
        LIGHTNING: _SELF_LOG,
    },
    "own-read": {LIGHTNING: _SELF_LOG},
    "accumulation": {
        TRANSFORMERS: "TrainingArguments(gradient_accumulation_steps=N)",
        LIGHTNING: "Trainer(accumulate_grad_batches=N)",
        ACCELERATE: (
            "Accelerator(gradient_accumulation_steps=N) and with accelerator.accumulate(model): around each "
            "micro-batch"
        ),
    },
    "broadcast-buffers": {
        TRANSFORMERS: "TrainingArguments(ddp_broadcast_buffers=False)",
        LIGHTNING: _DDP.format("broadcast_buffers=False"),
        ACCELERATE: _DDP_KWARGS.format("broadcast_buffers=False"),
    },
    "bucket-view": {
        LIGHTNING: _DDP.format("gradient_as_bucket_view=True"),
        ACCELERATE: _DDP_KWARGS.format("gradient_as_bucket_view=True"),
    },
    "bucket-size": {
        TRANSFORMERS: "ddp_bucket_cap_mb of TrainingArguments",
        LIGHTNING: "bucket_cap_mb of DDPStrategy",
        ACCELERATE: "bucket_cap_mb of DistributedDataParallelKwargs",
    },
    "keep-gathered": {
        TRANSFORMERS: 'TrainingArguments(fsdp_config={{"reshard_after_forward": False}})',
        ACCELERATE: "FullyShardedDataParallelPlugin(reshard_after_forward=False)",
    },
    "no-anomaly": {LIGHTNING: "Trainer(detect_anomaly=False)"},
    "nondeterministic": {
        TRANSFORMERS: "TrainingArguments(full_determinism=False), the default,",
        LIGHTNING: "Trainer(deterministic=False), the default,",
    },
    "no-emptying": {
        TRANSFORMERS: "TrainingArguments(torch_empty_cache_steps=None), the default, and no empty_cache() in callbacks"
    },
    "grouped-by-length": {
        TRANSFORMERS: (
            'TrainingArguments(train_sampling_strategy="group_by_length"), before version 5 group_by_length=True'
        )
    },
}

#: Python functions of each that only its training loop calls, as Kineto or the probe names them, and the ranges of
#: Lightning's profiler. The Trainer of transformers runs on accelerate, so the order counts.
_FRAMES: Final = {
    TRANSFORMERS: re.compile(r"(^|/)transformers/trainer\.py(\(\d+\): |:\d+ )"),
    LIGHTNING: re.compile(
        r"(^|/)(lightning/pytorch|pytorch_lightning)/(trainer|loops|strategies)/.*\.py(\(\d+\): |:\d+ )"
        r"|^\[pl\]\[\w+\]"
    ),
    ACCELERATE: re.compile(r"(^|/)accelerate/(accelerator|optimizer|data_loader)\.py(\(\d+\): |:\d+ )"),
}
#: Frameworks whose training loop calls the model: the script only starts it.
_OWN_LOOP: Final = (TRANSFORMERS, LIGHTNING)


@cached_on_trace
def trainer_of(trace: Trace) -> str:
    """Return the framework whose training loop the steps run in, as the session or Python frames tell; empty = none."""
    seen = trace.uncaptured
    if seen is not None and seen.trainer:
        return seen.trainer
    return next(
        (name for name, frame in _FRAMES.items() if any(map(frame.search, trace.names))),
        "",
    )


def in_own_loop(frames: Iterable[str]) -> bool:
    """Return whether some Python frames include one of a framework's own training loop, which no script can change."""
    patterns = [_FRAMES[name] for name in _OWN_LOOP]
    return any(pattern.search(frame) for frame in frames for pattern in patterns)


def argument(trace: Trace, lever: str, plain: str, **values: object) -> str:
    """Return what to write for a lever: the framework's argument, or else what plain PyTorch needs.

    ``values`` fill the names in braces of :data:`LEVERS`.
    """
    form = LEVERS[lever].get(trainer_of(trace))
    return plain if form is None else form.format(plain=plain, **values)
