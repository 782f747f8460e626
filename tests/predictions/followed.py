"""Records scripts as people write them, and measures what following the advice saves.

    python -m tests.predictions.followed OUT [SCRIPT…] [--seconds 7]

Each script of ``scripts/`` is recorded by tuiprof into ``OUT``, then timed as it is and with each change of `CHANGES`,
by its own clock and in a process of its own. Needs a GPU, and transformers, Lightning, torchmetrics, SciPy and JAX
for those scripts that use them. With ``SMALL=1`` in the environment they are tiny, to see on a CPU that they run.
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
    "ctc_speech": {
        "bfloat16": (
            (
                "output = model(spectrograms)  #",
                "output = torch.autocast('cuda', dtype=torch.bfloat16)(model)(spectrograms).float()  #",
            ),
        ),
        "TF32": (("torch.manual_seed(7)", "torch.set_float32_matmul_precision('high')"),),
        "six workers": (('"num_workers": 2', '"num_workers": 6, "persistent_workers": True'),),
        "fused": (("args.learning_rate)\n    criterion", "args.learning_rate, fused=True)\n    criterion"),),
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
    "detr_detection": {
        "metrics read for each line": (
            (
                "            metric_logger.update(loss=",
                "            if i % 10 == 0: metric_logger.update(loss=",
            ),
            (
                "            metric_logger.update(class_",
                "            if i % 10 == 0: metric_logger.update(class_",
            ),
        ),
        "attention without weights": (
            (
                "key_padding_mask=key_padding_mask)[0]",
                "key_padding_mask=key_padding_mask, need_weights=False)[0]",
            ),
            ("value=tgt)[0]", "value=tgt, need_weights=False)[0]"),
        ),
        "bfloat16": (
            ("self.class_embed(hs)", "self.class_embed(hs).float()"),
            ("self.bbox_embed(hs).sigmoid()", "self.bbox_embed(hs).float().sigmoid()"),
            (
                "outputs = model(images, mask)",
                "outputs = torch.autocast('cuda', dtype=torch.bfloat16)(model)(images, mask)",
            ),
        ),
        "one operator for a frozen norm": (
            (
                "        # move reshapes",
                "        stats = self.running_mean, self.running_var\n"
                "        return F.batch_norm(x, *stats, self.weight, self.bias)\n        # move reshapes",
            ),
        ),
        "fused": (("weight_decay=1e-4)", "weight_decay=1e-4, fused=True)"),),
    },
    "dlrm_clicks": {
        "four workers": (
            ('"--num-workers", type=int, default=0', '"--num-workers", type=int, default=4'),
            (
                "shuffle=True, num_workers=args.num_workers,",
                "shuffle=True, num_workers=4, persistent_workers=True,",
            ),
        ),
        "arange": (
            (
                "[torch.tensor(range(batchSize)) for _ in range(featureCnt)]",
                "[torch.arange(batchSize)] * featureCnt",
            ),
        ),
        "indices made once": (
            (
                "        li = torch.tensor([i for i in range(ni) for j in range(i)])\n"
                "        lj = torch.tensor([j for i in range(nj) for j in range(i)])\n",
                "        if not hasattr(self, 'pairs'):\n"
                "            self.pairs = torch.tril_indices(ni, nj, -1, device=Z.device)\n"
                "        li, lj = self.pairs\n",
            ),
        ),
        "loss kept on the device": (("L = E.detach().cpu().numpy()", "L = E.detach()"),),
    },
    "graphsage_sampling": {
        "features on the device": (
            (
                "x, y = make_graph(num_nodes, 25, 100, num_classes)",
                "x, y = make_graph(num_nodes, 25, 100, num_classes); x = x.to(device)",
            ),
            ("x[n_id].to(device)", "x[n_id.to(device)]"),
        ),
        "twelve workers": (
            ("default=1 if SMALL else 4", "default=1 if SMALL else 12"),
            ("num_workers=args.num_workers)", "num_workers=args.num_workers, persistent_workers=True)"),
        ),
        "sums on the device": (
            ("+= float(loss)", "+= loss.detach()"),
            ("int(out.argmax(dim=-1).eq(target).sum())", "out.argmax(dim=-1).eq(target).sum()"),
        ),
    },
    "jax_cifar_resnet": {
        "metrics read every 20 steps": (
            ("batch_metrics.append(jax", "step % 20 or batch_metrics.append(jax"),
        ),
        "bfloat16": (
            ("dilated(x, w, (", "dilated(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), ("),
            ('("NHWC", "HWIO", "NHWC"))', '("NHWC", "HWIO", "NHWC")).astype(jnp.float32)'),
        ),
        "donated": (("static_argnums=(6,))", "static_argnums=(6,), donate_argnums=(0, 1, 2))"),),
        "four workers": (
            (
                "shuffle=True,\n",
                "shuffle=True, num_workers=4, multiprocessing_context='spawn', persistent_workers=True,\n",
            ),
        ),
    },
    "jax_transformer": {
        "loss read every 20 steps": (("losses.append(float", "step % 20 or losses.append(float"),),
    },
    "lora_causal_lm": {
        "no checkpoints": (
            ("    model.gradient_checkpointing_enable()\n    model.enable_input_require_grads()\n", ""),
        ),
        "adapters in bfloat16": (("    model.to(device)\n", "    model.to(device, torch.bfloat16)\n"),),
        "fused": (("weight_decay=0.0\n", "weight_decay=0.0, fused=True\n"),),
        "loss read once a step": (("total_loss += loss.item()", "total_loss += loss.detach()"),),
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
    "nerf_rays": {
        "TF32": (
            ("    poses = torch.T", "    torch.set_float32_matmul_precision('high')\n    poses = torch.T"),
        ),
        "bfloat16": (
            (
                "batchify(fn, netchunk)(embedded)",
                "torch.autocast('cuda', dtype=torch.bfloat16)(batchify(fn, netchunk))(embedded).float()",
            ),
        ),
        "compiled": (
            (
                "    grad_vars = list(",
                "    model, model_fine = torch.compile(model), torch.compile(model_fine)\n    grad_vars = list(",
            ),
        ),
        "images on the device": (
            (
                "poses = torch.Tensor(poses).to(device)",
                "poses, views = torch.Tensor(poses).to(device), torch.Tensor(images).to(device)",
            ),
            ("torch.Tensor(target).to(device)", "views[img_i]"),
        ),
        "pixels chosen on the device": (
            (
                "select_coords = coords[select_inds].long()",
                "select_coords = torch.randint(H, (args.N_rand, 2), device=device)",
            ),
            ("        coords = torch.reshape(coords, [-1, 2])  # (H * W, 2)\n", ""),
            (
                "        coords = torch.stack(\n            torch.meshgrid(torch.linspace(0, H - 1, H), "
                'torch.linspace(0, W - 1, W), indexing="ij"), -1\n        )\n',
                "",
            ),
            (
                "        select_inds = np.random.choice(coords.shape[0], size=[args.N_rand], replace=False)"
                "  # (N_rand,)\n",
                "",
            ),
        ),
    },
    "patchtst_lightning": {
        "TF32": (("trainer.fit(m", "torch.set_float32_matmul_precision('high'); trainer.fit(m"),),
        "bfloat16": (('accelerator="auto",', 'accelerator="auto", precision="bf16-mixed",'),),
        "float32 in the dataset": (("(data - mean) / std", "((data - mean) / std).astype(np.float32)"),),
        "compiled": (
            (
                "PatchTST(c_in, seq_len, pred_len, **model)",
                "torch.compile(PatchTST(c_in, seq_len, pred_len, **model))",
            ),
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
    "sac_continuous": {
        "fused": (("_lr)", "_lr, fused=True)"),),
        "no checks of distributions": (("Normal(mean, std)", "Normal(mean, std, validate_args=False)"),),
        "alpha kept on the device": (("log_alpha.exp().item()", "log_alpha.exp().detach()[0]"),),
        "targets updated at once": (
            (
                "            for param, target_param in zip(qf1.parameters(), qf1_target.parameters()):\n"
                "                target_param.data.copy_(args.tau * param.data + (1 - args.tau) * target_param.data)\n"
                "            for param, target_param in zip(qf2.parameters(), qf2_target.parameters()):\n"
                "                target_param.data.copy_(args.tau * param.data + (1 - args.tau) * target_param.data)\n",
                "            with torch.no_grad():\n"
                "                targets = [*qf1_target.parameters(), *qf2_target.parameters()]\n"
                "                torch._foreach_lerp_(targets, [*qf1.parameters(), *qf2.parameters()], args.tau)\n",
            ),
        ),
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
    "vit_mixup": {
        "fused attention": (
            (
                "        attn = (q @ k.transpose(-2, -1)) * self.scale\n        attn = attn.softmax(dim=-1)\n"
                "        attn = self.attn_drop(attn)\n\n        x = (attn @ v).",
                "        x = F.scaled_dot_product_attention(q, k, v).",
            ),
        ),
        "no waiting": (
            ('            if device.type == "cuda":\n                torch.cuda.synchronize()\n', ""),
            ("            losses_m.update(loss", "            batch_idx % 20 or losses_m.update(loss"),
        ),
        "bfloat16 without a scaler": (
            ("torch.autocast(device.type, ", "torch.autocast(device.type, dtype=torch.bfloat16, "),
            (
                'GradScaler(device.type, enabled=device.type == "cuda")',
                "GradScaler(device.type, enabled=False)",
            ),
        ),
        "averages updated at once": (
            (
                "        self._update(model, update_fn=lambda e, m: self.decay * e + (1.0 - self.decay) * m)",
                "        mine, theirs = (list(m.state_dict().values()) for m in (self.module, model))\n"
                "        torch._foreach_lerp_(mine, theirs, 1.0 - self.decay)",
            ),
        ),
        "compiled": (("    train_loss_fn = S", "    model = torch.compile(model)\n    train_loss_fn = S"),),
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
