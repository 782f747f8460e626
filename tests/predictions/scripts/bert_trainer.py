"""Fine-tune a BERT sentiment classifier with the Hugging Face Trainer.

No download: the model comes from a config, the reviews are made up from word lists.
"""
import argparse
import os
import random
import tempfile
import time

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

SMALL = os.environ.get("SMALL") == "1"
MAX_LENGTH = 32 if SMALL else 128

POSITIVE = "great wonderful brilliant moving funny charming superb delightful fresh clever".split()
NEGATIVE = "awful boring dull terrible clumsy predictable weak tedious noisy pointless".split()
NEUTRAL = [f"word{i}" for i in range(5000)] + "the a film movie story actor plot scene it was and".split()


class ToyTokenizer:
    """Whitespace tokenizer with the special tokens of BERT."""

    def __init__(self, words):
        self.vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
        for w in words:
            self.vocab.setdefault(w, len(self.vocab))

    def __call__(self, texts, max_length):
        encodings = {"input_ids": [], "token_type_ids": [], "attention_mask": []}
        for text in texts:
            ids = [self.vocab.get(w, 1) for w in text.lower().split()][: max_length - 2]
            ids = [2] + ids + [3]
            pad = max_length - len(ids)
            encodings["input_ids"].append(ids + [0] * pad)
            encodings["token_type_ids"].append([0] * max_length)
            encodings["attention_mask"].append([1] * len(ids) + [0] * pad)
        return encodings


def make_reviews(n, seed):
    rng = random.Random(seed)
    texts, labels = [], []
    for _ in range(n):
        label = rng.randint(0, 1)
        length = rng.randint(MAX_LENGTH // 4, MAX_LENGTH)
        words = rng.choices(NEUTRAL, k=length)
        for _ in range(max(1, length // 12)):
            source = POSITIVE if (rng.random() < 0.85) == bool(label) else NEGATIVE
            words[rng.randrange(length)] = rng.choice(source)
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


class ReviewDataset(Dataset):
    def __init__(self, encodings, labels):
        self.encodings = encodings
        self.labels = labels

    def __getitem__(self, idx):
        item = {key: torch.tensor(val[idx]) for key, val in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[idx])
        return item

    def __len__(self):
        return len(self.labels)


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    tp = int(((predictions == 1) & (labels == 1)).sum())
    fp = int(((predictions == 1) & (labels == 0)).sum())
    fn = int(((predictions == 0) & (labels == 1)).sum())
    return {
        "accuracy": float((predictions == labels).mean()),
        "f1": 2 * tp / max(1, 2 * tp + fp + fn),
    }


class StepClock(TrainerCallback):
    """Stops the training after a number of seconds or steps and keeps the step times."""

    def __init__(self, seconds, steps):
        self.seconds, self.steps = seconds, steps
        self.ends, self.t_start = [], None

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
        if len(self.ends) == 5:
            self.t_start = self.ends[-1]
        if self.steps:
            control.should_training_stop = len(self.ends) >= self.steps
        elif self.t_start and self.ends[-1] - self.t_start > self.seconds:
            control.should_training_stop = True
        return control


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    cli = parser.parse_args()
    set_seed(42)

    tokenizer = ToyTokenizer(POSITIVE + NEGATIVE + NEUTRAL)
    train_texts, train_labels = make_reviews(200 if SMALL else 20_000, seed=1)
    val_texts, val_labels = make_reviews(32 if SMALL else 1_000, seed=2)
    train_dataset = ReviewDataset(tokenizer(train_texts, MAX_LENGTH), train_labels)
    val_dataset = ReviewDataset(tokenizer(val_texts, MAX_LENGTH), val_labels)

    config = BertConfig(vocab_size=len(tokenizer.vocab), num_labels=2)
    if SMALL:
        config = BertConfig(vocab_size=len(tokenizer.vocab), num_labels=2, hidden_size=32,
                            num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertForSequenceClassification(config)

    with tempfile.TemporaryDirectory() as output_dir:
        training_args = TrainingArguments(
            output_dir=output_dir,
            num_train_epochs=100,
            per_device_train_batch_size=4 if SMALL else 32,
            per_device_eval_batch_size=8 if SMALL else 64,
            learning_rate=5e-5,
            warmup_steps=100,
            weight_decay=0.01,
            logging_steps=10,
            eval_strategy="steps",
            eval_steps=200,
            save_strategy="no",
            report_to="none",
            seed=42,
        )
        clock = StepClock(cli.seconds, cli.steps)
        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=train_dataset,
            eval_dataset=val_dataset,
            compute_metrics=compute_metrics,
            callbacks=[clock],
        )
        trainer.train()
        print(trainer.evaluate())

    gaps = np.diff(clock.ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
