"""Records scripts as people write them, and measures what following the advice saves.

    python -m tests.predictions.followed OUT [SCRIPT…] [--seconds 7]

Each script of ``scripts/`` is recorded by tuiprof into ``OUT``, then timed as it is and with each change of `CHANGES`,
by its own clock and in a process of its own. Needs a GPU, and transformers, Lightning, torchmetrics and JAX for those
scripts that use them. With ``SMALL=1`` in the environment they are tiny, to see on a CPU that they run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")
#: What is changed in each script: a name, then pairs of a text and its replacement.
CHANGES: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "bert_trainer": {
        "TF32": (("training_args = Tr", "torch.set_float32_matmul_precision('high'); training_args = Tr"),),
        "no check for NaN": (('report_to="none",', 'report_to="none", logging_nan_inf_filter=False,'),),
    },
    "ddpm_ema": {
        "bfloat16": (
            ("pred = model(", "pred = torch.autocast('cuda', dtype=torch.bfloat16)(model)("),
            ("F.mse_loss(pred, noise)", "F.mse_loss(pred.float(), noise)"),
        ),
        "no item": (("pbar.set_postfix(", "if len(ends) % 50 == 0: pbar.set_postfix("),),
        "compiled": (
            (
                "    diffusion = Diffusion(50",
                "    raw, model = model, torch.compile(model)\n    diffusion = Diffusion(50",
            ),
            ("ema.update(model)", "ema.update(raw)"),
        ),
    },
    "jax_transformer": {
        "loss read every 20 steps": (("losses.append(float", "step % 20 or losses.append(float"),),
    },
    "nanogpt_train": {
        "compiled": (
            (
                "model = GPT(GPTConfig()).to(device)",
                "raw = GPT(GPTConfig()).to(device); model = torch.compile(raw)",
            ),
            ("optimizer = model.configure", "optimizer = raw.configure"),
        ),
    },
    "resnet50_classifier": {
        "channels-last": (
            ("model = model.to(device)", "model = model.to(device, memory_format=torch.channels_last)"),
            ("images = images.to(device,", "images = images.to(device, memory_format=torch.channels_last,"),
        ),
        "bfloat16": (
            (
                "output = model(images)",
                "output = torch.autocast('cuda', dtype=torch.bfloat16)(model)(images).float()",
            ),
        ),
        "compiled": (("model = model.to(device)", "model = torch.compile(model.to(device))"),),
    },
    "schnet_gnn": {
        "persistent workers": (
            ("num_workers=workers)", "num_workers=workers, persistent_workers=workers > 0)"),
        ),
    },
    "seq2seq_attention": {
        "zeros on the device": (("output_dim).to(device)", "output_dim, device=device)"),),
    },
    "unet_lightning": {
        "channels-last": (("trainer.fit(m", "model.to(memory_format=torch.channels_last); trainer.fit(m"),),
        "bfloat16": (('accelerator="auto",', 'accelerator="auto", precision="bf16-mixed",'),),
        "fused": (("lr=self.hparams.lr)", "lr=self.hparams.lr, fused=True)"),),
    },
    "wgan_gp": {
        "persistent workers": (("drop_last=True)", "drop_last=True, persistent_workers=not SMALL)"),),
    },
}
_MEDIAN = "np.median(gaps[len(gaps) // 3:]):.2f}"
_MEAN = " (mean {1000 * np.mean(gaps[len(gaps) // 3:]):.2f})"


def changed(name: str, change: str = "") -> str:
    """Return a script that prints its median and mean step, with a change if one is named."""
    text = (SCRIPTS / f"{name}.py").read_text()
    for old, new in ((_MEDIAN, _MEDIAN + _MEAN), *(CHANGES.get(name, {})[change] if change else ())):
        if old not in text:
            raise SystemExit(f"{name}, {change}: {old!r} is not in the script")
        text = text.replace(old, new)
    return text


def main() -> None:
    """Record and time the scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--seconds", type=float, default=7)
    chosen = parser.parse_args()
    for name in chosen.scripts or sorted(path.stem for path in SCRIPTS.glob("*.py")):
        run = (sys.executable, str(SCRIPTS / f"{name}.py"), "--seconds", str(chosen.seconds + 5))
        record = (
            sys.executable,
            "-m",
            "tuiprof",
            "--sessions",
            str(chosen.out),
            "record",
            "-q",
            "--name",
            name,
        )
        subprocess.run([*record, "--", *run], stdout=subprocess.DEVNULL, check=True)
        for change in ("", *CHANGES.get(name, {})):
            with tempfile.TemporaryDirectory() as folder:
                script = Path(folder, f"{name}.py")
                script.write_text(changed(name, change))
                timed = [sys.executable, script, "--seconds", str(chosen.seconds)]
                done = subprocess.run(timed, cwd=folder, capture_output=True, text=True)
            said = [line for line in done.stdout.splitlines() if "median step" in line]
            print(f"{name}, {change or 'as it is'}: {said[-1] if said else done.stderr[-400:]}", flush=True)


if __name__ == "__main__":
    main()
