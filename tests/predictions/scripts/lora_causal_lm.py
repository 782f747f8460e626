"""Instruction tuning of a small Llama with LoRA, without peft: the adapters are written out below.

The model comes from a config and the instructions are made up, so that nothing is downloaded. The prompts and the
masking of their labels are those of Stanford Alpaca.
"""
import argparse
import math
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

SMALL = os.environ.get("SMALL") == "1"

IGNORE_INDEX = -100
MAX_LENGTH = 256 if SMALL else 512
PROMPT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)


# ------------------------------------------------------------------ data
class WordPieceTokenizer:
    """Greedy longest match first, as BERT's tokenizer; the vocabulary is built from syllables."""

    def __init__(self, size):
        syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
        pieces = list("abcdefghijklmnopqrstuvwxyz.,:#'\n") + syllables
        pieces += [a + b for a in syllables for b in syllables] + PROMPT.lower().split()
        self.vocab = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
        for piece in pieces:
            if len(self.vocab) < size:
                self.vocab.setdefault(piece, len(self.vocab))
        self.longest = max(map(len, self.vocab))

    def encode(self, text):
        ids = [1]
        for word in text.lower().split():
            start = 0
            while start < len(word):
                end = min(len(word), start + self.longest)
                while end > start and word[start:end] not in self.vocab:
                    end -= 1
                if end == start:
                    ids.append(3)
                    start += 1
                else:
                    ids.append(self.vocab[word[start:end]])
                    start = end
        return ids


def make_records(n, seed):
    rng = random.Random(seed)
    syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(3000)]

    def text(low, high):
        return " ".join(rng.choices(words, k=rng.randint(low, high)))

    return [{"instruction": text(5, 25), "input": text(0, 40), "output": text(10, 160)} for _ in range(n)]


class InstructionDataset(Dataset):
    def __init__(self, records, tokenizer):
        self.records = records
        self.tokenizer = tokenizer

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        record = self.records[i]
        prompt = self.tokenizer.encode(PROMPT.format(**record))
        answer = self.tokenizer.encode(record["output"])[1:] + [2]
        input_ids = (prompt + answer)[:MAX_LENGTH]
        labels = ([IGNORE_INDEX] * len(prompt) + answer)[:MAX_LENGTH]
        return dict(input_ids=torch.tensor(input_ids), labels=torch.tensor(labels))


def collate(instances):
    input_ids = [instance["input_ids"] for instance in instances]
    labels = [instance["labels"] for instance in instances]
    input_ids = nn.utils.rnn.pad_sequence(input_ids, batch_first=True, padding_value=0)
    labels = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX)
    return dict(input_ids=input_ids, labels=labels, attention_mask=input_ids.ne(0))


# ------------------------------------------------------------------ LoRA
class LoRALinear(nn.Module):
    """A frozen linear layer plus a trainable product of two low-rank matrices."""

    def __init__(self, base, r, alpha, dropout):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scaling = alpha / r
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        result = self.base(x)
        x = self.dropout(x.to(self.lora_A.dtype))
        update = x @ self.lora_A.T @ self.lora_B.T * self.scaling
        return result + update.to(result.dtype)


def add_lora(model, targets, r=16, alpha=32, dropout=0.05):
    for param in model.parameters():
        param.requires_grad = False
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, r, alpha, dropout))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    print(f"trainable params: {trainable:,} || all params: {total:,} || trainable%: {100 * trainable / total:.4f}")


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    losses = []
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        losses.append(model(**batch).loss.item())
    model.train()
    return math.exp(min(20, sum(losses) / len(losses)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--micro_batch_size", type=int, default=2 if SMALL else 8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", type=float, default=3e-4)
    parser.add_argument("--eval_steps", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(42)
    random.seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=64 if SMALL else 1024,
        intermediate_size=128 if SMALL else 2816,
        num_hidden_layers=2 if SMALL else 16,
        num_attention_heads=4 if SMALL else 16,
        num_key_value_heads=2 if SMALL else 4,
        max_position_embeddings=2048,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    add_lora(model, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
    model.to(device)
    model.train()

    tokenizer = WordPieceTokenizer(config.vocab_size)
    train_set = InstructionDataset(make_records(200 if SMALL else 20_000, 1), tokenizer)
    val_set = InstructionDataset(make_records(8 if SMALL else 128, 2), tokenizer)
    train_loader = DataLoader(train_set, batch_size=args.micro_batch_size, shuffle=True, collate_fn=collate)
    val_loader = DataLoader(val_set, batch_size=args.micro_batch_size, collate_fn=collate)

    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=args.learning_rate, weight_decay=0.0
    )
    steps_per_epoch = len(train_loader) // args.gradient_accumulation_steps
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, 3 * steps_per_epoch)

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        progress = tqdm(total=steps_per_epoch, desc=f"epoch {epoch}")
        total_loss = 0.0
        for step, batch in enumerate(train_loader):
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs.loss / args.gradient_accumulation_steps
            loss.backward()
            total_loss += loss.item()
            if (step + 1) % args.gradient_accumulation_steps != 0:
                continue

            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.update(1)
            progress.set_postfix(loss=f"{total_loss:.4f}", lr=f"{scheduler.get_last_lr()[0]:.2e}")
            total_loss = 0.0

            ends.append(time.perf_counter())
            if len(ends) % args.eval_steps == 0:
                print(f"\nstep {len(ends)}: perplexity {evaluate(model, val_loader, device):.2f}")
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        progress.close()
        epoch += 1

    gaps = np.diff(ends)
    print(f"\nmedian step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
