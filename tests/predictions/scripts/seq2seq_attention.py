"""Neural machine translation with LSTMs, additive attention and teacher forcing.

The "languages" are synthetic: the target is the reversed source through a word dictionary, with
some words that translate to two words.
"""
import argparse
import os
import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

SMALL = os.environ.get("SMALL") == "1"
PAD, SOS, EOS = 0, 1, 2
VOCAB = 100 if SMALL else 8000

SEED = 1234
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class TranslationDataset(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        lo, hi = (3, 8) if SMALL else (8, 30)
        weights = [1.0 / (i + 10) for i in range(3, VOCAB)]
        self.pairs = []
        for _ in range(n):
            words = rng.choices(range(3, VOCAB), weights=weights, k=rng.randint(lo, hi))
            self.pairs.append((self.words(words), self.words(self.translate(words))))

    def translate(self, words):
        out = []
        for w in reversed(words):
            out.append(3 + (w * 7 + 5) % (VOCAB - 3))
            if w % 11 == 0:
                out.append(3 + w % 5)
        return out

    def words(self, ids):
        return " ".join(f"w{i}" for i in ids)

    def numericalize(self, sentence):
        return [SOS] + [int(w[1:]) for w in sentence.split()] + [EOS]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, idx):
        src, trg = self.pairs[idx]
        return torch.tensor(self.numericalize(src)), torch.tensor(self.numericalize(trg))


def collate(batch):
    batch.sort(key=lambda p: len(p[0]), reverse=True)
    src, trg = zip(*batch)
    src_len = torch.tensor([len(s) for s in src])
    return pad_sequence(src, padding_value=PAD), src_len, pad_sequence(trg, padding_value=PAD)


class Encoder(nn.Module):
    def __init__(self, input_dim, emb_dim, hid_dim, dropout):
        super().__init__()
        self.embedding = nn.Embedding(input_dim, emb_dim, padding_idx=PAD)
        self.rnn = nn.LSTM(emb_dim, hid_dim, bidirectional=True)
        self.fc_h = nn.Linear(hid_dim * 2, hid_dim)
        self.fc_c = nn.Linear(hid_dim * 2, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_len):
        embedded = self.dropout(self.embedding(src))
        packed = pack_padded_sequence(embedded, src_len.to("cpu"))
        packed_outputs, (hidden, cell) = self.rnn(packed)
        outputs, _ = pad_packed_sequence(packed_outputs)
        hidden = torch.tanh(self.fc_h(torch.cat((hidden[-2], hidden[-1]), dim=1)))
        cell = torch.tanh(self.fc_c(torch.cat((cell[-2], cell[-1]), dim=1)))
        return outputs, hidden, cell


class Attention(nn.Module):
    def __init__(self, hid_dim):
        super().__init__()
        self.attn = nn.Linear(hid_dim * 3, hid_dim)
        self.v = nn.Linear(hid_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask):
        src_len = encoder_outputs.shape[0]
        hidden = hidden.unsqueeze(1).repeat(1, src_len, 1)
        encoder_outputs = encoder_outputs.permute(1, 0, 2)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        attention = self.v(energy).squeeze(2)
        attention = attention.masked_fill(mask == 0, -1e10)
        return F.softmax(attention, dim=1)


class Decoder(nn.Module):
    def __init__(self, output_dim, emb_dim, hid_dim, dropout, attention):
        super().__init__()
        self.output_dim = output_dim
        self.attention = attention
        self.embedding = nn.Embedding(output_dim, emb_dim, padding_idx=PAD)
        self.rnn = nn.LSTMCell(hid_dim * 2 + emb_dim, hid_dim)
        self.fc_out = nn.Linear(hid_dim * 3 + emb_dim, output_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input, hidden, cell, encoder_outputs, mask):
        embedded = self.dropout(self.embedding(input))
        a = self.attention(hidden, encoder_outputs, mask).unsqueeze(1)
        weighted = torch.bmm(a, encoder_outputs.permute(1, 0, 2)).squeeze(1)
        hidden, cell = self.rnn(torch.cat((embedded, weighted), dim=1), (hidden, cell))
        prediction = self.fc_out(torch.cat((hidden, weighted, embedded), dim=1))
        return prediction, hidden, cell


class Seq2Seq(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def create_mask(self, src):
        return (src != PAD).permute(1, 0)

    def forward(self, src, src_len, trg, teacher_forcing_ratio=0.5):
        trg_len, batch_size = trg.shape
        outputs = torch.zeros(trg_len, batch_size, self.decoder.output_dim).to(device)
        encoder_outputs, hidden, cell = self.encoder(src, src_len)
        input = trg[0, :]
        mask = self.create_mask(src)
        for t in range(1, trg_len):
            output, hidden, cell = self.decoder(input, hidden, cell, encoder_outputs, mask)
            outputs[t] = output
            teacher_force = random.random() < teacher_forcing_ratio
            top1 = output.argmax(1)
            input = trg[t] if teacher_force else top1
        return outputs


def init_weights(m):
    for name, param in m.named_parameters():
        if "weight" in name:
            nn.init.normal_(param.data, mean=0, std=0.01)
        else:
            nn.init.constant_(param.data, 0)


def evaluate(model, loader, criterion):
    model.eval()
    epoch_loss = 0
    with torch.no_grad():
        for src, src_len, trg in loader:
            src, trg = src.to(device), trg.to(device)
            output = model(src, src_len, trg, 0)
            loss = criterion(output[1:].view(-1, output.shape[-1]), trg[1:].view(-1))
            epoch_loss += loss.item()
    model.train()
    return epoch_loss / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=8 if SMALL else 128)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()

    emb, hid = (16, 16) if SMALL else (256, 512)
    model = Seq2Seq(Encoder(VOCAB, emb, hid, 0.5), Decoder(VOCAB, emb, hid, 0.5, Attention(hid))).to(device)
    model.apply(init_weights)
    print(f"The model has {sum(p.numel() for p in model.parameters() if p.requires_grad):,} trainable parameters")

    train_loader = DataLoader(TranslationDataset(400 if SMALL else 29_000, 1), args.batch_size, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(TranslationDataset(16 if SMALL else 1_014, 2), args.batch_size, collate_fn=collate)
    optimizer = optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)

    ends, t_start, done, epoch = [], None, False, 0
    while not done:
        epoch += 1
        epoch_loss, count = 0, 0
        model.train()
        for src, src_len, trg in train_loader:
            src, trg = src.to(device), trg.to(device)
            optimizer.zero_grad()
            output = model(src, src_len, trg)
            output = output[1:].view(-1, output.shape[-1])
            loss = criterion(output, trg[1:].view(-1))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            epoch_loss += loss.item()
            count += 1

            ends.append(time.perf_counter())
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        valid_loss = evaluate(model, valid_loader, criterion)
        print(f"Epoch: {epoch:02} | Train Loss: {epoch_loss / count:.3f} | Val. Loss: {valid_loss:.3f}")

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
