"""An inference loop over prompts without a DataLoader, as in the generation examples of many model cards."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--prompts", type=int, default=120)
options = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
encoder = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), num_layers=2, enable_nested_tensor=False
)
encoder.to(device).eval()
total = 0.0
with torch.inference_mode():
    for _prompt in range(options.prompts):
        tokens = torch.randn(1, 32, 64, device=device)
        for _token in range(8):
            tokens = encoder(tokens)
        total += tokens.sum().item()  # the clock: tick()
print("steps", options.prompts)
print("loss", f"{total:.6f}")
