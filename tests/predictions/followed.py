"""Records scripts as people write them, and measures what following the advice saves.

    python -m tests.predictions.followed OUT [SCRIPT…] [--seconds 7] [--changes REGEX]

Each script of ``scripts/`` is recorded by tuiprof into ``OUT``, then timed as it is and with each change of `CHANGES`,
by its own clock and in a process of its own. Needs a GPU, and transformers, Lightning, torchmetrics, SciPy and JAX
for those scripts that use them. With ``SMALL=1`` in the environment they are tiny, to see on a CPU that they run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import indent

SCRIPTS = Path(__file__).with_name("scripts")
#: Imported by changed scripts.
GRAPHED = Path(__file__).with_name("graphed.py")
_ONE_LENGTH = "F.pad(spectrograms, (0, 1280 - spectrograms.shape[-1]))"
_ONE_SIZE = (
    "    max_size = [max(s) for s in zip(*[list(img.shape) for img in tensor_list])]\n",
    "    max_size = [3, 96, 192] if SMALL else [3, 480, 832]\n",
)
_CAPTURABLE = 'capturable=device.type == "cuda")'
#: What is changed in each script: a name, then pairs of a text and its replacement. With four texts, the lines from the
#: first to the second become the body of a function, between the third and the fourth.
CHANGES: dict[str, dict[str, tuple[tuple[str, ...], ...]]] = {
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
        # More padding reaches the backward direction of the GRUs. The last batches of a length do not fill a graph.
        "CUDA graphs of the model for five lengths": (
            (
                "    epochs = 20\n",
                "    shape = args.batch_size, 1, hparams['n_feats']\n"
                "    graphs = {\n"
                "        n: torch.cuda.make_graphed_callables(\n"
                "            nn.Sequential(model), (torch.zeros(*shape, n, device=device),)\n"
                "        )\n"
                "        for n in range(768, 1281, 128)\n"
                "        if use_cuda\n"
                "    }\n"
                "    epochs = 20\n",
            ),
            (
                "            output = model(spectrograms)  #",
                "            length = max(768, -(-spectrograms.shape[-1] // 128) * 128)\n"
                "            padded = F.pad(spectrograms, (0, length - spectrograms.shape[-1]))\n"
                "            output = graphs.get(length, model)(padded)  #",
            ),
        ),
        "padded to one length": (("output = model(spectrograms)  #", f"output = model({_ONE_LENGTH})  #"),),
        # Its GRUs are not compiled, and launch their kernels themselves.
        "padded to one length, compiled": (
            (
                "    epochs = 20\n",
                "    compiled = torch.compile(model, mode='reduce-overhead', dynamic=False)\n    epochs = 20\n",
            ),
            ("output = model(spectrograms)  #", f"output = compiled({_ONE_LENGTH})  #"),
        ),
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
        # The matcher and the losses wait for the device, and stay as they are.
        "padded to one size": (_ONE_SIZE,),
        "padded to one size, CUDA graphs of the model": (
            _ONE_SIZE,
            (
                "    model.to(device)\n",
                "    model.to(device)\n"
                "    if device.type == 'cuda':\n"
                "        images = torch.zeros(args.batch_size, 3, 480, 832, device=device)\n"
                "        torch.cuda.make_graphed_callables(model, (images, images[:, 0] > 0))\n"
                "        del images\n",
            ),
        ),
        "padded to one size, compiled": (
            _ONE_SIZE,
            (
                "outputs = model(images, mask)",
                "outputs = compiled(images, mask)",
            ),
            (
                "    model.to(device)\n",
                "    model.to(device)\n"
                "    compiled = torch.compile(model, mode='reduce-overhead', dynamic=False)\n",
            ),
        ),
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
    "ppo_vector_env": {
        # The learning rate is a tensor, so in float32; random numbers are those that Categorical.sample draws.
        "CUDA graphs": (
            (
                "import torch.optim as optim\n",
                "import torch.optim as optim\nfrom graphed import graphed\n",
            ),
            ("Categorical(logits=logits)", "Categorical(logits=logits, validate_args=False)"),
            (
                "action = probs.sample()",
                "action = (probs.probs / torch.empty_like(probs.probs).exponential_()).argmax(-1)",
            ),
            (
                "lr=args.learning_rate, eps=1e-5)",
                f"lr=torch.tensor(args.learning_rate, device=device), eps=1e-5, {_CAPTURABLE}",
            ),
            ('["lr"] = frac * args.learning_rate', '["lr"].fill_(frac * args.learning_rate)'),
            (
                "            with torch.no_grad():\n"
                "                action, logprob, _, value = agent.get_action_and_value(",
                "            @graphed\n"
                "            def act(next_obs):\n"
                "                with torch.no_grad():\n"
                "                    return agent.get_action_and_value(next_obs)\n\n"
                "            with torch.no_grad():\n"
                "                action, logprob, _, value = act(",
            ),
            (
                "        with torch.no_grad():\n            next_value =",
                "            returns = advantages + values\n",
                "        @graphed\n        def estimate(next_obs, next_done):\n",
                "            return advantages, returns\n\n"
                "        advantages, returns = estimate(next_obs, next_done)\n",
            ),
            (
                "clipfracs += [((ratio - 1.0).abs() > args.clip_coef).float().mean().item()]",
                "clipfrac = ((ratio - 1.0).abs() > args.clip_coef).float().mean()",
            ),
            ("np.mean(clipfracs)", "torch.stack(clipfracs).mean().item()"),
            (
                "                _, newlogprob, entropy",
                "                optimizer.step()\n",
                "                @graphed\n"
                "                def learn(mb_inds, b_obs, b_logprobs, b_actions, b_advantages, b_returns, "
                "b_values):\n",
                "                    return v_loss.detach(), pg_loss.detach(), approx_kl, clipfrac\n\n"
                "                batch = b_obs, b_logprobs, b_actions, b_advantages, b_returns, b_values\n"
                "                mb_inds = torch.from_numpy(mb_inds).to(device)\n"
                "                v_loss, pg_loss, approx_kl, clipfrac = learn(mb_inds, *batch)\n"
                "                clipfracs.append(clipfrac.clone())\n",
            ),
        ),
        "networks compiled": (
            (
                "    agent = Agent(4, 2).to(device)\n",
                "    agent = Agent(4, 2).to(device)\n"
                "    agent.actor.compile(mode='reduce-overhead', dynamic=False)\n"
                "    agent.critic.compile(mode='reduce-overhead', dynamic=False)\n",
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
        "CUDA graphs": (
            (
                "import torch.optim as optim\n",
                "import torch.optim as optim\nfrom graphed import graphed\n",
            ),
            ("Normal(mean, std)", "Normal(mean, std, validate_args=False)"),
            ("_lr)", f"_lr, {_CAPTURABLE}"),
            ("log_alpha.exp().item()", "log_alpha.exp().detach()[0]"),
            (
                "            actions, _, _ = actor.get_action(",
                "            @graphed\n"
                "            def act(seen):\n"
                "                with torch.no_grad():\n"
                "                    return actor.get_action(seen)\n\n"
                "            actions, _, _ = act(",
            ),
            (
                "        with torch.no_grad():\n            next_state_actions,",
                "args.tau * param.data + (1 - args.tau) * target_param.data)\n\n",
                "        @graphed\n"
                "        def update(observations, actions_b, next_observations, dones, rewards):\n"
                "            alpha = log_alpha.exp().detach()[0]\n",
                "            values = qf1_a_values, qf2_a_values, alpha\n"
                "            losses = qf1_loss, qf2_loss, qf_loss, actor_loss, alpha_loss\n"
                "            return [one.detach() for one in (*values, *losses)]\n\n"
                "        batch = observations, actions_b, next_observations, dones, rewards\n"
                "        qf1_a_values, qf2_a_values, alpha, *losses = update(*batch)\n"
                "        qf1_loss, qf2_loss, qf_loss, actor_loss, alpha_loss = losses\n\n",
            ),
        ),
        "networks compiled": (
            (
                "    q_optimizer = ",
                "    for network in (actor, qf1, qf2, qf1_target, qf2_target):\n"
                "        network.compile(mode='reduce-overhead', dynamic=False)\n"
                "    q_optimizer = ",
            ),
            ("actor.get_action(torch.Tensor", "torch.no_grad()(actor.get_action)(torch.Tensor"),
            (
                "        # ALGO LOGIC: put action logic here\n",
                "        torch.compiler.cudagraph_mark_step_begin()\n",
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
        # The weights of the interpolation are drawn on the device, so they are other random numbers.
        "CUDA graphs": (
            (
                "from torch.utils.data import DataLoader, Dataset\n",
                "from torch.utils.data import DataLoader, Dataset\nfrom graphed import graphed\n",
            ),
            (
                "torch.Tensor(np.random.random((real_samples.size(0), 1, 1, 1))).to(device)",
                "torch.rand((real_samples.size(0), 1, 1, 1), device=device)",
            ),
            ("torch.ones(d_interpolates.size()).to(device)", "torch.ones_like(d_interpolates)"),
            ("betas=(opt.b1, opt.b2))", f"betas=(opt.b1, opt.b2), {_CAPTURABLE}"),
            (
                "            optimizer_D.zero_grad()\n",
                "            optimizer_D.step()\n",
                "            @graphed\n            def train_critic(real_imgs):\n",
                "                return d_loss.detach(), gradient_penalty.detach()\n\n"
                "            d_loss, gradient_penalty = train_critic(real_imgs)\n",
            ),
            (
                "        optimizer_G.zero_grad()\n",
                "        optimizer_G.step()\n",
                "        @graphed\n        def train_generator():\n",
                "            return g_loss.detach()\n\n        g_loss = train_generator()\n",
            ),
        ),
        # The compiler has no second derivatives, so the critic cannot be compiled.
        "generator compiled": (
            (
                "    generator.apply(weights_init)\n",
                "    generator.apply(weights_init)\n"
                "    generator.compile(mode='reduce-overhead', dynamic=False)\n",
            ),
            ("fake_imgs = generator(z).detach()", "fake_imgs = torch.no_grad()(generator)(z)"),
        ),
    },
}
_MEDIAN = "np.median(gaps[len(gaps) // 3:]):.2f}"
_MEAN = " (mean {1000 * np.mean(gaps[len(gaps) // 3:]):.2f})"


def changed(name: str, change: str = "") -> str:
    """Return a script that prints its median and mean step, with a change if one is named."""
    text = (SCRIPTS / f"{name}.py").read_text()
    for texts in ((_MEDIAN, _MEDIAN + _MEAN), *(CHANGES.get(name, {})[change] if change else ())):
        text = replaced(text, *texts)
    return text


def replaced(text: str, first: str, *others: str) -> str:
    """Return a text with one replacement of `CHANGES`."""
    before, found, rest = text.partition(first)
    if not found:
        raise ValueError(f"{first!r} is missing")
    if len(others) == 1:
        return text.replace(first, others[0])
    last, head, tail = others
    body, found, after = rest.partition(last)
    if not found:
        raise ValueError(f"{last!r} is missing after {first!r}")
    return before + head + indent(first + body + last, "    ") + tail + after


def main() -> None:
    """Record and time the scripts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("scripts", nargs="*")
    parser.add_argument("--seconds", type=float, default=7)
    parser.add_argument("--changes", default="", help="only those in whose name this is found")
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
        for change in ("", *(one for one in CHANGES.get(name, {}) if re.search(chosen.changes, one))):
            with tempfile.TemporaryDirectory() as folder:
                script = Path(folder, f"{name}.py")
                script.write_text(changed(name, change))
                shutil.copy(GRAPHED, folder)
                timed = [sys.executable, script, "--seconds", str(chosen.seconds)]
                done = subprocess.run(timed, cwd=folder, capture_output=True, text=True)
            said = [line for line in done.stdout.splitlines() if "median step" in line]
            print(f"{name}, {change or 'as it is'}: {said[-1] if said else done.stderr[-1500:]}", flush=True)


if __name__ == "__main__":
    main()
