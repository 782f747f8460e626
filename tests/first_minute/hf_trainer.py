"""Hugging Face ``Trainer`` with gradient accumulation, after the examples of its documentation: a causal language model."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--accumulate", type=int, default=40)
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--evaluate", type=int, default=0, help="evaluate and save every so many steps")
parser.add_argument("--out", default="out")
options = parser.parse_args()

torch.manual_seed(0)


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.randint(0, 512, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=64, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=options.out,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=options.accumulate,
    max_steps=options.steps,
    logging_steps=5,
    save_strategy="steps" if options.evaluate else "no",
    save_steps=options.evaluate or 500,
    eval_strategy="steps" if options.evaluate else "no",
    eval_steps=options.evaluate or None,
    report_to=[],
    disable_tqdm=True,
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Tokens(100_000), eval_dataset=Tokens(64)
)  # the clock: of_transformers(trainer)
result = trainer.train()
print("steps", trainer.state.global_step)
print("loss", f"{result.training_loss:.12f}")
