"""The networks of works.py in PyTorch, with the names and layouts of lockstep/networks.cpp."""
import torch
import torch.nn.functional as F
from torch import nn


def mlp():
    # The activations have no parameters: numbered so that the names are those of the other side.
    class Rectified(nn.Linear):
        def forward(self, x):
            return torch.relu(super().forward(x))
    return nn.Sequential(Rectified(784, 1024), Rectified(1024, 1024), nn.Linear(1024, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(64 * 8 * 8, 10))


class Basic(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        same = stride == 1 and inputs == width
        self.down = nn.Sequential(*([] if same else [nn.Conv2d(inputs, width, 1, stride, bias=False),
                                                     nn.BatchNorm2d(width)]))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.down(x))


def resnet():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width in (64, 128, 256, 512):
        for i in range(2):
            layers.append(Basic(inputs, width, 2 if i == 0 and width > 64 else 1))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mobile():
    layers = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    inputs = 32
    for width, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs),
                   nn.ReLU(inplace=True), nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width),
                   nn.ReLU(inplace=True)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = map(split, F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.linear1, self.linear2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.self_attn(self.norm1(x))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class Blocks(nn.Module):
    def __init__(self, width, heads, layers):
        super().__init__()
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Gpt(nn.Module):
    def __init__(self, width=128, length=128, words=256):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.head = Blocks(width, 4, 4), nn.Linear(width, words)

    def forward(self, text):
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.blocks(self.words(text) + self.positions(places)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(128, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


NETWORKS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "mobile": mobile, "gpt": Gpt, "lstm": Lstm}
ADAPTIVE = {"gpt", "lstm"}


def loaded(name, state):
    """The network with the other side's parameters."""
    net = NETWORKS[name]()
    missing = net.load_state_dict(state, strict=False)
    left = [key for key in missing.missing_keys if not key.endswith("num_batches_tracked")] + missing.unexpected_keys
    if left:
        raise ValueError(f"expected the same parameters on both sides, got other ones: {left[:4]}")
    return net


def training_step(net, name, x, targets):
    """A function that makes a step and returns its loss."""
    optimizer = (torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True) if name in ADAPTIVE else
                 torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, fused=True))

    def step():
        optimizer.zero_grad(set_to_none=True)
        scores = net(x)
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), targets.reshape(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()
    return step
