"""End-to-end speech recognition: residual CNN, bidirectional GRUs and CTC on log-mel spectrograms.

After the well-known "build a speech recognition model in PyTorch" notebook. Utterances are synthesised: each character
is a chord of two tones, with noise; reading one costs about what decoding a FLAC file does.
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
import torch.utils.data as data

SMALL = os.environ.get("SMALL") == "1"
SAMPLE_RATE = 16000
CHARS = "' abcdefghijklmnopqrstuvwxyz"


# ------------------------------------------------------------------ text
class TextTransform:
    """Maps characters to integers and vice versa"""

    def __init__(self):
        self.char_map = {c: i for i, c in enumerate(CHARS)}
        self.index_map = {i: c for c, i in self.char_map.items()}

    def text_to_int(self, text):
        return [self.char_map[c] for c in text]

    def int_to_text(self, labels):
        return "".join(self.index_map[i] for i in labels)


text_transform = TextTransform()


def levenshtein(a, b):
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def cer(reference, hypothesis):
    return levenshtein(reference, hypothesis) / max(1, len(reference))


def wer(reference, hypothesis):
    return levenshtein(reference.split(), hypothesis.split()) / max(1, len(reference.split()))


# ------------------------------------------------------------------ audio
class Utterances(data.Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        words = ["".join(rng.choices(CHARS[2:], k=rng.randint(2, 9))) for _ in range(2000)]
        low, high = (1, 2) if SMALL else (6, 16)
        self.texts = [" ".join(rng.choices(words, k=rng.randint(low, high))) for _ in range(n)]
        self.rates = [rng.uniform(0.07, 0.1) for _ in range(n)]

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, n):
        text = self.texts[n]
        per_char = int(self.rates[n] * SAMPLE_RATE)
        codes = np.repeat(np.array(text_transform.text_to_int(text)), per_char)
        t = np.arange(len(codes)) / SAMPLE_RATE
        wave = np.sin(2 * np.pi * (200 + 60 * codes) * t) + 0.5 * np.sin(2 * np.pi * (3000 - 80 * codes) * t)
        wave = 0.2 * wave * (codes != 1) + 0.02 * np.random.randn(len(codes))
        waveform = torch.from_numpy(wave.astype(np.float32)).unsqueeze(0)
        return waveform, SAMPLE_RATE, text


class MelSpectrogram(nn.Module):
    def __init__(self, sample_rate=SAMPLE_RATE, n_fft=400, hop=160, n_mels=128):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("fb", self.filterbank(sample_rate, n_fft // 2 + 1, n_mels))

    @staticmethod
    def filterbank(sample_rate, n_freqs, n_mels):
        freqs = torch.linspace(0, sample_rate // 2, n_freqs)
        top = 2595.0 * np.log10(1.0 + sample_rate / 2 / 700.0)
        points = 700.0 * (10 ** (torch.linspace(0, top, n_mels + 2) / 2595.0) - 1.0)
        diff = points[1:] - points[:-1]
        slopes = points.unsqueeze(0) - freqs.unsqueeze(1)
        down = -slopes[:, :-2] / diff[:-1]
        up = slopes[:, 2:] / diff[1:]
        return torch.clamp(torch.min(down, up), min=0)

    def forward(self, waveform):
        spec = torch.stft(waveform, self.n_fft, self.hop, window=self.window, return_complex=True).abs() ** 2
        return torch.matmul(spec.transpose(-1, -2), self.fb).transpose(-1, -2)


class Masking(nn.Module):
    """SpecAugment: one masked band along an axis"""

    def __init__(self, param, axis):
        super().__init__()
        self.param, self.axis = param, axis

    def forward(self, spec):
        size = spec.shape[self.axis]
        width = min(size, int(torch.rand(1).item() * self.param))
        start = int(torch.rand(1).item() * (size - width))
        mask = torch.ones(size)
        mask[start : start + width] = 0
        return spec * (mask.view(-1, 1) if self.axis == 1 else mask)


train_audio_transforms = nn.Sequential(MelSpectrogram(), Masking(30, axis=1), Masking(100, axis=2))
valid_audio_transforms = MelSpectrogram()


def data_processing(batch, data_type="train"):
    spectrograms = []
    labels = []
    input_lengths = []
    label_lengths = []
    for waveform, _, utterance in batch:
        if data_type == "train":
            spec = train_audio_transforms(waveform)
        else:
            spec = valid_audio_transforms(waveform)
        spec = torch.log(spec + 1e-6).squeeze(0).transpose(0, 1)
        spectrograms.append(spec)
        label = torch.LongTensor(text_transform.text_to_int(utterance.lower()))
        labels.append(label)
        input_lengths.append(spec.shape[0] // 2)
        label_lengths.append(len(label))

    spectrograms = nn.utils.rnn.pad_sequence(spectrograms, batch_first=True).unsqueeze(1).transpose(2, 3)
    labels = nn.utils.rnn.pad_sequence(labels, batch_first=True)
    return spectrograms, labels, input_lengths, label_lengths


def greedy_decoder(output, labels, label_lengths, blank_label=28, collapse_repeated=True):
    arg_maxes = torch.argmax(output, dim=2)
    decodes = []
    targets = []
    for i, args in enumerate(arg_maxes):
        decode = []
        targets.append(text_transform.int_to_text(labels[i][: label_lengths[i]].tolist()))
        for j, index in enumerate(args):
            if index != blank_label:
                if collapse_repeated and j != 0 and index == args[j - 1]:
                    continue
                decode.append(index.item())
        decodes.append(text_transform.int_to_text(decode))
    return decodes, targets


# ------------------------------------------------------------------ model
class CNNLayerNorm(nn.Module):
    """Layer normalization built for cnns input"""

    def __init__(self, n_feats):
        super().__init__()
        self.layer_norm = nn.LayerNorm(n_feats)

    def forward(self, x):
        # x (batch, channel, feature, time)
        x = x.transpose(2, 3).contiguous()  # (batch, channel, time, feature)
        x = self.layer_norm(x)
        return x.transpose(2, 3).contiguous()  # (batch, channel, feature, time)


class ResidualCNN(nn.Module):
    def __init__(self, in_channels, out_channels, kernel, stride, dropout, n_feats):
        super().__init__()
        self.cnn1 = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2)
        self.cnn2 = nn.Conv2d(out_channels, out_channels, kernel, stride, padding=kernel // 2)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.layer_norm1 = CNNLayerNorm(n_feats)
        self.layer_norm2 = CNNLayerNorm(n_feats)

    def forward(self, x):
        residual = x  # (batch, channel, feature, time)
        x = self.layer_norm1(x)
        x = F.gelu(x)
        x = self.dropout1(x)
        x = self.cnn1(x)
        x = self.layer_norm2(x)
        x = F.gelu(x)
        x = self.dropout2(x)
        x = self.cnn2(x)
        x += residual
        return x


class BidirectionalGRU(nn.Module):
    def __init__(self, rnn_dim, hidden_size, dropout, batch_first):
        super().__init__()
        self.BiGRU = nn.GRU(
            input_size=rnn_dim, hidden_size=hidden_size, num_layers=1, batch_first=batch_first, bidirectional=True
        )
        self.layer_norm = nn.LayerNorm(rnn_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.layer_norm(x)
        x = F.gelu(x)
        x, _ = self.BiGRU(x)
        x = self.dropout(x)
        return x


class SpeechRecognitionModel(nn.Module):
    def __init__(self, n_cnn_layers, n_rnn_layers, rnn_dim, n_class, n_feats, stride=2, dropout=0.1):
        super().__init__()
        n_feats = n_feats // 2
        self.cnn = nn.Conv2d(1, 32, 3, stride=stride, padding=3 // 2)
        self.rescnn_layers = nn.Sequential(*[
            ResidualCNN(32, 32, kernel=3, stride=1, dropout=dropout, n_feats=n_feats) for _ in range(n_cnn_layers)
        ])
        self.fully_connected = nn.Linear(n_feats * 32, rnn_dim)
        self.birnn_layers = nn.Sequential(*[
            BidirectionalGRU(
                rnn_dim=rnn_dim if i == 0 else rnn_dim * 2, hidden_size=rnn_dim, dropout=dropout, batch_first=i == 0
            )
            for i in range(n_rnn_layers)
        ])
        self.classifier = nn.Sequential(
            nn.Linear(rnn_dim * 2, rnn_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(rnn_dim, n_class)
        )

    def forward(self, x):
        x = self.cnn(x)
        x = self.rescnn_layers(x)
        sizes = x.size()
        x = x.view(sizes[0], sizes[1] * sizes[2], sizes[3])  # (batch, feature, time)
        x = x.transpose(1, 2)  # (batch, time, feature)
        x = self.fully_connected(x)
        x = self.birnn_layers(x)
        return self.classifier(x)


def test(model, device, test_loader, criterion):
    print("\nevaluating...")
    model.eval()
    test_loss = 0
    test_cer, test_wer = [], []
    with torch.no_grad():
        for spectrograms, labels, input_lengths, label_lengths in test_loader:
            spectrograms, labels = spectrograms.to(device), labels.to(device)
            output = F.log_softmax(model(spectrograms), dim=2)
            loss = criterion(output.transpose(0, 1), labels, input_lengths, label_lengths)
            test_loss += loss.item() / len(test_loader)
            decoded_preds, decoded_targets = greedy_decoder(output.cpu(), labels, label_lengths)
            for pred, target in zip(decoded_preds, decoded_targets):
                test_cer.append(cer(target, pred))
                test_wer.append(wer(target, pred))
    print(f"Test set: Average loss: {test_loss:.4f}, Average CER: {np.mean(test_cer):4f} "
          f"Average WER: {np.mean(test_wer):.4f}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3 if SMALL else 25)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--batch_size", type=int, default=2 if SMALL else 20)
    args = parser.parse_args()

    hparams = {
        "n_cnn_layers": 1 if SMALL else 3,
        "n_rnn_layers": 1 if SMALL else 5,
        "rnn_dim": 32 if SMALL else 512,
        "n_class": 29,
        "n_feats": 128,
        "stride": 2,
        "dropout": 0.1,
    }
    use_cuda = torch.cuda.is_available()
    torch.manual_seed(7)
    device = torch.device("cuda" if use_cuda else "cpu")

    train_dataset = Utterances(100 if SMALL else 20_000, 1)
    test_dataset = Utterances(4 if SMALL else 200, 2)
    kwargs = {"num_workers": 2, "pin_memory": True} if use_cuda else {}
    train_loader = data.DataLoader(dataset=train_dataset, batch_size=args.batch_size, shuffle=True,
                                   collate_fn=lambda x: data_processing(x, "train"), **kwargs)
    test_loader = data.DataLoader(dataset=test_dataset, batch_size=args.batch_size, shuffle=False,
                                  collate_fn=lambda x: data_processing(x, "valid"), **kwargs)

    model = SpeechRecognitionModel(**hparams).to(device)
    print("Num Model Parameters", sum([param.nelement() for param in model.parameters()]))

    optimizer = optim.AdamW(model.parameters(), args.learning_rate)
    criterion = nn.CTCLoss(blank=28, zero_infinity=True).to(device)
    epochs = 20
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.learning_rate,
                                              steps_per_epoch=int(len(train_loader)), epochs=epochs,
                                              anneal_strategy="linear")

    ends, t_start, done = [], None, False
    for epoch in range(1, epochs + 1):
        model.train()
        data_len = len(train_loader.dataset)
        for batch_idx, _data in enumerate(train_loader):
            spectrograms, labels, input_lengths, label_lengths = _data
            spectrograms, labels = spectrograms.to(device), labels.to(device)

            optimizer.zero_grad()

            output = model(spectrograms)  # (batch, time, n_class)
            output = F.log_softmax(output, dim=2)
            output = output.transpose(0, 1)  # (time, batch, n_class)

            loss = criterion(output, labels, input_lengths, label_lengths)
            loss.backward()

            optimizer.step()
            scheduler.step()
            if batch_idx % 100 == 0 or batch_idx == data_len:
                print(f"Train Epoch: {epoch} [{batch_idx * len(spectrograms)}/{data_len} "
                      f"({100.0 * batch_idx / len(train_loader):.0f}%)]\tLoss: {loss.item():.6f}")

            ends.append(time.perf_counter())
            if len(ends) == 5:
                t_start = ends[-1]
            if args.steps:
                done = len(ends) >= args.steps
            elif t_start:
                done = ends[-1] - t_start > args.seconds
            if done:
                break
        test(model, device, test_loader, criterion)
        if done:
            break

    gaps = np.diff(ends)
    print(f"median step ms: {1000 * np.median(gaps[len(gaps) // 3:]):.2f}")


if __name__ == "__main__":
    main()
