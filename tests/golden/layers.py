"""Layers, with PyTorch's parameter names, and whole models. Run by scripts/make_golden."""
HALF = ("f32", "f64", "bf16")


def linear(inputs, outputs, bias=True):
    return nn.Linear(inputs, outputs, bias)


def conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias)


module("Linear", linear, x(3, 4, 7), dtypes=HALF, inputs=7, outputs=5)
module("Linear", linear, x(4, 7, layout="transposed"), inputs=7, outputs=5, bias=False)
module("Conv2d", conv2d, x(2, 4, 7, 6), dtypes=HALF, inputs=4, outputs=6, kernel=[3, 2], stride=[2, 1], padding=[1, 0],
       dilation=[1, 2], groups=2, bias=True)
module("Conv2d", conv2d, x(2, 3, 5, 5, layout="offset"), inputs=3, outputs=4, kernel=[3, 3], stride=[1, 1],
       padding=[1, 1], dilation=[1, 1], groups=1, bias=False)
for train in [True, False]:
    module("BatchNorm1d", nn.BatchNorm1d, x(6, 3), dtypes=HALF, loose=3, train=train, num_features=3)
    module("BatchNorm1d", nn.BatchNorm1d, x(4, 3, 5, layout="transposed"), loose=3, train=train, num_features=3,
           momentum=0.3)
    module("BatchNorm2d", nn.BatchNorm2d, x(2, 3, 4, 5), dtypes=HALF, loose=3, train=train, num_features=3)
module("LayerNorm", nn.LayerNorm, x(3, 4, 6), dtypes=HALF, loose=3, normalized_shape=[4, 6])
module("Embedding", lambda rows, size, padding: nn.Embedding(rows, size, padding), ints(3, 5, high=7), dtypes=HALF,
       rows=7, size=4, padding=2)
for name in ["ReLU", "Tanh", "Sigmoid", "SiLU", "GELU"]:
    module(name, getattr(nn, name), x(4, 5), dtypes=HALF)
module("MaxPool2d", lambda kernel: nn.MaxPool2d(kernel), distinct(2, 3, 6, 7), kernel=2)
module("AvgPool2d", lambda kernel: nn.AvgPool2d(kernel), x(2, 3, 6, 7), kernel=3)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(9, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    def forward(self, a):
        return F.log_softmax(self.body(a), -1)


class Block(nn.Module):
    """Of a residual network."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, a):
        b = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(a)))))
        return F.relu(b + (a if self.downsample is None else self.downsample(a)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList([Block(4, 4, 1), Block(4, 8, 2)])
        self.fc = nn.Linear(8, 5)

    def forward(self, a):
        a = F.relu(self.stem(a))
        for layer in self.layers:
            a = layer(a)
        return self.fc(a.mean((2, 3)))


for train in [True, False]:
    module("Mlp", Mlp, x(5, 9), dtypes=("f32", "f64"), loose=3, train=train)
    module("ResNet", ResNet, x(3, 3, 9, 8), dtypes=("f32", "f64"), loose=10, train=train)


def saved(name, model):
    """The model as PyTorch's users save it, with statistics that are not those of the start."""
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(4, 3, 9, 8))
    save_file(model.state_dict(), FOLDER / f"{name}.safetensors")
    return model.eval()


torch.manual_seed(1)
case("file_resnet", saved("model_resnet", ResNet()), x(3, 3, 9, 8), dtypes=("f32",), gradients=False)
module("GroupNorm", lambda groups, channels: nn.GroupNorm(groups, channels), x(2, 6, 3, 4), dtypes=HALF, loose=3, groups=2,
       channels=6)
module("ConvTranspose2d", lambda inputs, outputs, kernel, stride, padding, output_padding, groups, bias, dilation:
       nn.ConvTranspose2d(inputs, outputs, kernel, stride, padding, output_padding, groups, bias, dilation),
       x(2, 4, 3, 4), dtypes=HALF, inputs=4, outputs=6, kernel=[3, 2], stride=[2, 1], padding=[1, 0],
       output_padding=[1, 0], groups=2, bias=True, dilation=[1, 2])
module("AdaptiveAvgPool2d", lambda size: nn.AdaptiveAvgPool2d(size), x(2, 3, 5, 7), size=[2, 3])
module("Upsample", lambda scale: nn.Upsample(scale_factor=scale, mode="bilinear"), x(2, 3, 3, 4), scale=2.0)
for train in [True, False]:  # twice, so that there is something to average
    module("BatchNorm1d_average", lambda num_features: nn.BatchNorm1d(num_features, momentum=None), x(4, 3, 5),
           call=lambda m, a: (m(a * 3), m(a))[1], dtypes=("f32", "f64"), loose=3, train=train, num_features=3)
module("Hardswish", nn.Hardswish, x(4, 5, low=-5, high=5), dtypes=HALF)
module("RMSNorm", nn.RMSNorm, x(3, 4, 6), dtypes=HALF, loose=3, normalized_shape=[4, 6], eps=1e-5)
module("RMSNorm", nn.RMSNorm, x(5, 6), dtypes=("f32", "f64"), loose=3, normalized_shape=[6])
