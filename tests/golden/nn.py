"""The functions of neural networks. Run by scripts/make_golden."""
case("matmul", torch.matmul, x(5, 7), x(7, 3), dtypes=FLOATING)
case("matmul", torch.matmul, x(5, 7, layout="transposed"), x(7, 3, layout="transposed"))
case("matmul", torch.matmul, x(5, 7, layout="offset"), x(7))
case("matmul", torch.matmul, x(7), x(7, 3))
case("matmul", torch.matmul, x(2, 5, 7), x(2, 7, 3), dtypes=FLOATING)
case("matmul", torch.matmul, x(2, 1, 5, 7), x(3, 7, 4, layout="transposed"))
case("matmul", torch.matmul, x(4, 0), x(0, 3))
case("matmul", torch.matmul, x(17, 33), x(33, 18), dtypes=("f32",))
case("linear", F.linear, x(5, 7), x(4, 7), x(4), dtypes=FLOATING)
case("linear", F.linear, x(2, 3, 7, layout="offset"), x(4, 7))

CONVOLUTIONS = [  # x, w, stride, padding, dilation, groups
    ((2, 3, 7, 6), (4, 3, 3, 3), [1, 1], [0, 0], [1, 1], 1),
    ((2, 3, 7, 9), (4, 3, 3, 2), [2, 1], [1, 0], [1, 2], 1),
    ((1, 4, 8, 8), (6, 2, 3, 3), [2, 2], [1, 1], [1, 1], 2),
    ((2, 6, 5, 5), (6, 1, 3, 3), [1, 1], [1, 1], [1, 1], 6),
    ((2, 5, 4, 4), (3, 5, 1, 1), [1, 1], [0, 0], [1, 1], 1),
    ((1, 2, 9, 9), (3, 2, 5, 3), [3, 2], [2, 2], [1, 2], 1),
]
for image, weight, stride, padding, dilation, groups in CONVOLUTIONS:
    options = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
    case("conv2d", F.conv2d, x(*image), x(*weight), x(weight[0]), dtypes=FLOATING, **options)
    case("conv2d", F.conv2d, x(*image, layout="transposed"), x(*weight), dtypes=("f32",), **options)
case("max_pool2d", lambda a, kernel, stride, padding, dilation: F.max_pool2d(a, kernel, stride, padding, dilation),
     distinct(2, 3, 6, 7), dtypes=("f32", "f64", "bf16"), kernel=[2, 2], stride=[2, 2], padding=[0, 0], dilation=[1, 1])
case("max_pool2d", lambda a, kernel, stride, padding, dilation: F.max_pool2d(a, kernel, stride, padding, dilation),
     distinct(1, 2, 9, 8, layout="transposed"), kernel=[3, 2], stride=[1, 2], padding=[1, 1], dilation=[2, 1])
case("avg_pool2d", lambda a, kernel, stride, padding: F.avg_pool2d(a, kernel, stride, padding), x(2, 3, 6, 7),
     dtypes=FLOATING, kernel=[2, 3], stride=[2, 2], padding=[1, 1])
case("avg_pool2d", lambda a, kernel, stride, padding: F.avg_pool2d(a, kernel, stride, padding),
     x(2, 3, 6, 6, layout="offset"), kernel=[3, 3], stride=[3, 3], padding=[0, 0])

for shape in [(6, 3), (4, 3, 5), (2, 3, 4, 5)]:
    for training in [True, False]:
        case("batch_norm", lambda a, weight, bias, mean, var, training, momentum, eps: F.batch_norm(
                 a, mean.clone(), var.clone(), weight, bias, training, momentum, eps),
             x(*shape), x(3), x(3), x(3, grad=False), x(3, low=0.5, high=2, grad=False), dtypes=FLOATING, loose=3,
             training=training, momentum=0.1, eps=1e-5)
case("layer_norm", lambda a, weight, bias, shape, eps: F.layer_norm(a, shape, weight, bias, eps), x(4, 3, 7), x(7), x(7),
     dtypes=FLOATING, loose=3, shape=[7], eps=1e-5)
case("layer_norm", lambda a, weight, bias, shape, eps: F.layer_norm(a, shape, weight, bias, eps),
     x(4, 3, 5, layout="transposed"), x(3, 5), x(3, 5), loose=3, shape=[3, 5], eps=1e-3)
case("layer_norm_plain", lambda a, shape, eps: F.layer_norm(a, shape, eps=eps), x(5, 33), loose=3, shape=[33], eps=1e-5)

for name in ["softmax", "log_softmax"]:
    function = getattr(F, name)
    case(name, lambda a, dim, function=function: function(a, dim), x(4, 9, low=-5, high=5), dtypes=FLOATING, dim=-1)
    case(name, lambda a, dim, function=function: function(a, dim), x(3, 5, 2, layout="transposed"), dim=1)
    case(name, lambda a, dim, function=function: function(a, dim), x(3, 5, layout="offset", low=-90, high=90), dim=0)

REDUCTIONS = ["mean", "sum", "none"]
for reduction in REDUCTIONS:
    case("nll_loss", lambda a, target, weight, ignore, reduction: F.nll_loss(
             a, target, weight, ignore_index=ignore, reduction=reduction),
         x(6, 5, high=-0.1), ints(6, high=5), x(5, low=0.1, grad=False), ignore=2, reduction=reduction)
    for smoothing in [0.0, 0.2]:
        case("cross_entropy", lambda a, target, weight, ignore, reduction, smoothing: F.cross_entropy(
                 a, target, weight, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing),
             x(6, 5), ints(6, high=5), x(5, low=0.1, grad=False), dtypes=FLOATING, ignore=1, reduction=reduction,
             smoothing=smoothing)
    case("cross_entropy_plain", lambda a, target, reduction: F.cross_entropy(a, target, reduction=reduction),
         x(2, 5, 3, 4), ints(2, 3, 4, high=5), reduction=reduction)
    case("mse_loss", lambda a, b, reduction: F.mse_loss(a, b, reduction=reduction), x(4, 5), x(4, 5), dtypes=FLOATING,
         reduction=reduction)
    case("l1_loss", lambda a, b, reduction: F.l1_loss(a, b, reduction=reduction), x(4, 5), x(4, 5, low=3, high=4),
         dtypes=FLOATING, reduction=reduction)
    case("bce_with_logits", lambda a, b, reduction: F.binary_cross_entropy_with_logits(a, b, reduction=reduction),
         x(4, 5, low=-20, high=20), x(4, 5, low=0, high=1, grad=False), reduction=reduction)
case("embedding", lambda weight, index: F.embedding(index, weight), x(7, 4), ints(3, 5, high=7), dtypes=FLOATING)
case("embedding", lambda weight, index, padding: F.embedding(index, weight, padding), x(7, 4), ints(9, high=7),
     padding=3)

for activation, function in [("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", lambda a: F.gelu(a, approximate="tanh"))]:
    case("linear_activation", lambda a, weight, bias, activation, function=function: function(F.linear(a, weight, bias)),
         x(5, 7), x(4, 7), x(4), dtypes=FLOATING, loose=2, activation=activation)
TRANSPOSED = [  # x, w, stride, padding, output padding, dilation, groups
    ((2, 3, 4, 5), (3, 4, 3, 3), [1, 1], [0, 0], [0, 0], [1, 1], 1),
    ((2, 4, 4, 3), (4, 3, 3, 2), [2, 3], [1, 0], [1, 2], [1, 1], 2),
    ((1, 3, 5, 4), (3, 2, 2, 3), [2, 1], [1, 1], [1, 0], [2, 1], 1),
]
for image, weight, stride, padding, output_padding, dilation, groups in TRANSPOSED:
    case("conv_transpose2d", lambda a, w, b, stride, padding, output_padding, dilation, groups: F.conv_transpose2d(
             a, w, b, stride, padding, output_padding, groups, dilation),
         x(*image), x(*weight), x(weight[1] * groups), dtypes=FLOATING, stride=stride, padding=padding,
         output_padding=output_padding, dilation=dilation, groups=groups)
for size in [[3, 2], [1, 1], [7, 5], [4, 9]]:
    case("adaptive_avg_pool2d", lambda a, size: F.adaptive_avg_pool2d(a, size), x(2, 3, 7, 5), dtypes=FLOATING, size=size)
for size in [[14, 10], [3, 8]]:
    case("interpolate", lambda a, size, mode, align: F.interpolate(a, size=size, mode=mode), x(2, 3, 7, 5), size=size,
         mode="nearest", align=False)
    for align in [False, True]:
        case("interpolate", lambda a, size, mode, align: F.interpolate(a, size=size, mode=mode, align_corners=align),
             x(2, 3, 7, 5, layout="transposed"), dtypes=FLOATING, size=size, mode="bilinear", align=align)
case("interpolate_scale", lambda a, scale: F.interpolate(a, scale_factor=scale), x(2, 3, 4, 5), scale=[2.0, 1.5])
for shape in [(2, 6, 4, 5), (3, 6)]:
    case("group_norm", lambda a, weight, bias, groups, eps: F.group_norm(a, groups, weight, bias, eps), x(*shape), x(6),
         x(6), dtypes=FLOATING, loose=3, groups=2, eps=1e-5)
for reduction in REDUCTIONS:
    case("smooth_l1_loss", lambda a, b, reduction, beta: F.smooth_l1_loss(a, b, reduction=reduction, beta=beta), x(4, 5),
         x(4, 5), dtypes=FLOATING, reduction=reduction, beta=0.7)
    case("bce_weighted", lambda a, b, weight, pos, reduction: F.binary_cross_entropy_with_logits(
             a, b, weight, reduction=reduction, pos_weight=pos),
         x(4, 5, low=-8, high=8), x(4, 5, low=0, high=1, grad=False), x(5, low=0.1, grad=False),
         x(5, low=0.1, grad=False), reduction=reduction)
    case("cross_entropy_soft", lambda a, target, reduction, smoothing: F.cross_entropy(
             a, target, reduction=reduction, label_smoothing=smoothing),
         x(6, 5, layout="transposed"), x(6, 5, low=0, high=1, grad=False), reduction=reduction, smoothing=0.1)

POOLS = [  # x, kernel, stride, padding
    ((2, 2, 6, 7), [3, 2], [2, 3], [1, 1]),
    ((1, 2, 5, 8), [2, 3], [3, 2], [0, 1]),
]
for image, kernel, stride, padding in POOLS:
    case("max_pool2d", lambda a, kernel, stride, padding, dilation, ceil: F.max_pool2d(
             a, kernel, stride, padding, dilation, ceil), distinct(*image), dtypes=("f32", "f64"), kernel=kernel,
         stride=stride, padding=padding, dilation=[1, 1], ceil=True)
    for include, divisor in [(True, None), (False, None), (True, 5)]:
        case("avg_pool2d", lambda a, kernel, stride, padding, ceil, include, divisor=None: F.avg_pool2d(
                 a, kernel, stride, padding, ceil, include, divisor), x(*image), dtypes=("f32", "f64"), kernel=kernel,
             stride=stride, padding=padding, ceil=True, include=include, **({"divisor": divisor} if divisor else {}))

# Statistics far from 0: what is kept of them for the gradient has more digits than the 16-bit dtypes.
case("batch_norm", lambda a, weight, bias, mean, var, training, momentum, eps: F.batch_norm(
         a, mean.clone(), var.clone(), weight, bias, training, momentum, eps),
     x(6, 3, 2, low=60, high=64), x(3), x(3), x(3, grad=False), x(3, low=0.5, high=2, grad=False), dtypes=FLOATING, loose=3,
     training=True, momentum=0.1, eps=1e-5)


def limited(weight, index, norm, power):
    """What is looked up, and the weight afterwards."""
    weight = weight.clone()
    return [F.embedding(index, weight, max_norm=norm, norm_type=power), weight]


for power in [2.0, 1.0]:
    case("embedding_max_norm", limited, x(7, 4, grad=False), ints(9, high=7), dtypes=FLOATING, norm=1.5, power=power)
case("embedding_by_frequency", lambda weight, index, padding: F.embedding(index, weight, padding, scale_grad_by_freq=True),
     x(5, 4), ints(3, 4, high=5), dtypes=("f32", "f64", "bf16"), padding=3)

case("rms_norm", lambda a, weight, shape, eps: F.rms_norm(a, shape, weight, eps), x(4, 3, 7), x(7), dtypes=FLOATING,
     loose=3, shape=[7], eps=1e-5)
case("rms_norm", lambda a, weight, shape, eps: F.rms_norm(a, shape, weight, eps), x(4, 3, 5, layout="transposed"), x(3, 5),
     loose=3, shape=[3, 5], eps=1e-3)
# Without eps, also of numbers so small that it counts; not in 16 bits, whose reference is computed in f64.
case("rms_norm_plain", lambda a, shape: F.rms_norm(a, shape), x(5, 33), loose=3, shape=[33])
case("rms_norm_plain", lambda a, shape: F.rms_norm(a, shape), x(5, 33, low=-5e-4, high=5e-4), dtypes=("f32",), loose=3,
     shape=[33])

for training in [True, False]:
    case("batch_norm_relu", lambda a, weight, bias, mean, var, training, momentum, eps: F.relu(F.batch_norm(
             a, mean.clone(), var.clone(), weight, bias, training, momentum, eps)),
         x(3, 4, 5, 3), x(4), x(4), x(4, grad=False), x(4, low=0.5, high=2, grad=False), dtypes=FLOATING, loose=3,
         training=training, momentum=0.1, eps=1e-5)
