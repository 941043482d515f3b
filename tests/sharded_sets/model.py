"""The model of sets.cpp in PyTorch, for scripts/compare_sharded."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 31), nn.Linear(31, 12)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 12)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(12)
        self.in_bf16 = nn.Linear(12, 7).to(torch.bfloat16)
        self.in_f16 = nn.Linear(7, 6).to(torch.float16)
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("places", torch.arange(11))

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = block(h)
        h = self.in_f16(self.in_bf16(self.norm(h).to(torch.bfloat16)).to(torch.float16)).to(torch.float32)
        return h * self.scale + self.conv(torch.ones(1, 3, 4, 4)).mean()


def trained(seed, steps=3):
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(4, 5)).square().mean().backward()
        optimizer.step()
    return net
