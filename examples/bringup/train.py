"""Trains a gated layer, on the accelerator: the program of docs/what_to_write_next.md."""

# docs: bringup-train
import torch

torch.manual_seed(0)
device = torch.accelerator.current_accelerator()
x, expected = torch.randn(64, 32, device=device), torch.randn(64, 32, device=device)
first, gate = (torch.randn(32, 32, device=device).requires_grad_() for _ in range(2))

for _ in range(10):
    loss = ((x @ first).relu() * (x @ gate + 1) - expected).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in (first, gate):
            weight += -0.1 * weight.grad
            weight.grad = None
print(f"loss {loss.item():.3f}")
# docs: end
