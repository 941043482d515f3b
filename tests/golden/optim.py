"""Optimizers and learning-rate schedules: parameters after a few steps. Run by scripts/make_golden."""
STEPS = 4
SHAPES = [(3, 5), (7,), (1,)]


def after(make):
    """A function of the parameters, then of the gradients of each step."""
    def run(*tensors, **options):
        parameters = [torch.nn.Parameter(tensor.clone()) for tensor in tensors[:len(SHAPES)]]
        optimizer = make(parameters, **options)
        for step in range(STEPS):
            for i, parameter in enumerate(parameters):
                parameter.grad = tensors[len(SHAPES) * (step + 1) + i].clone()
            optimizer.step()
        return [parameter.detach() for parameter in parameters]
    return run


def optimizer(name, function, **options):
    tensors = [x(*shape) for _ in range(STEPS + 1) for shape in SHAPES]
    case(name, after(function), *tensors, gradients=False, **options)


for options in [dict(), dict(momentum=0.9), dict(momentum=0.9, dampening=0.3, weight_decay=0.1),
                dict(momentum=0.8, nesterov=True, weight_decay=0.05), dict(maximize=True, momentum=0.5)]:
    optimizer("SGD", torch.optim.SGD, lr=0.1, **options)
for name in ["Adam", "AdamW"]:
    for options in [dict(), dict(weight_decay=0.1), dict(beta1=0.7, beta2=0.9, eps=1e-3), dict(amsgrad=True),
                    dict(maximize=True, weight_decay=0.2)]:
        def make(parameters, beta1=0.9, beta2=0.999, name=name, **rest):
            return getattr(torch.optim, name)(parameters, betas=(beta1, beta2), **rest)
        optimizer(name, make, lr=0.05, **options)


def rates(make):
    def run(epochs, **options):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        scheduler = make(optimizer, **options)
        result = []
        for _ in range(epochs):
            result.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return torch.tensor(result, dtype=torch.float64)
    return run


S = torch.optim.lr_scheduler
case("StepLR", rates(S.StepLR), dtypes=("f64",), epochs=10, step_size=3, gamma=0.5)
case("MultiStepLR", rates(S.MultiStepLR), dtypes=("f64",), epochs=10, milestones=[2, 5, 6], gamma=0.3)
case("ExponentialLR", rates(S.ExponentialLR), dtypes=("f64",), epochs=10, gamma=0.8)
case("CosineAnnealingLR", rates(S.CosineAnnealingLR), dtypes=("f64",), epochs=11, T_max=10, eta_min=0.01)
case("LinearLR", rates(S.LinearLR), dtypes=("f64",), epochs=10, start_factor=0.25, end_factor=0.9, total_iters=6)
case("SequentialLR", rates(lambda optimizer, milestone: S.SequentialLR(optimizer, [
         S.LinearLR(optimizer, 0.1, 1.0, milestone), S.CosineAnnealingLR(optimizer, 8)], [milestone])),
     dtypes=("f64",), epochs=13, milestone=5)


def sparse_adam(weight, *rows, beta1=0.9, beta2=0.999, **options):
    """The rows of each step: indices, then values."""
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.SparseAdam([parameter], betas=(beta1, beta2), **options)
    for indices, values in zip(rows[::2], rows[1::2]):
        parameter.grad = torch.sparse_coo_tensor(indices.unsqueeze(0), values, parameter.shape)
        optimizer.step()
    return parameter.detach()


for options in [dict(), dict(beta1=0.7, beta2=0.9, eps=1e-3), dict(maximize=True)]:
    case("SparseAdam", sparse_adam, x(7, 3), ints(4, high=7), x(4, 3), ints(1, high=7), x(1, 3), ints(9, high=3), x(9, 3),
         ints(2, high=7), x(2, 3), gradients=False, lr=0.05, **options)

case("CosineAnnealingWarmRestarts", rates(S.CosineAnnealingWarmRestarts), dtypes=("f64",), epochs=20, T_0=3, T_mult=2,
     eta_min=0.05)
case("CosineAnnealingWarmRestarts", rates(S.CosineAnnealingWarmRestarts), dtypes=("f64",), epochs=9, T_0=4, T_mult=1,
     eta_min=0)
case("PolynomialLR", rates(S.PolynomialLR), dtypes=("f64",), epochs=8, total_iters=6, power=1.5)
for three_phase in [False, True]:
    for strategy in ["cos", "linear"]:
        case("OneCycleLR", rates(lambda optimizer, **options: S.OneCycleLR(optimizer, 0.5, cycle_momentum=False, **options)),
             dtypes=("f64",), epochs=20, total_steps=20, pct_start=0.25, anneal_strategy=strategy, div_factor=10.0,
             final_div_factor=100.0, three_phase=three_phase)


def plateau(metrics, **options):
    """The rates of two groups, after each metric."""
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in [0.5, 0.02]])
    scheduler = S.ReduceLROnPlateau(optimizer, **options)
    result = []
    for metric in metrics.tolist():
        scheduler.step(metric)
        result.append([group["lr"] for group in optimizer.param_groups])
    return torch.tensor(result, dtype=torch.float64)


METRICS = [5.0, 4.0, 4.0, 3.9999, 4.1, float("nan"), 3.0, 3.0, 3.1, 2.9, 3.5, 3.5, 3.5, 3.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
for mode in ["min", "max"]:
    for threshold_mode in ["rel", "abs"]:
        case("ReduceLROnPlateau", plateau, values(METRICS if mode == "min" else [7 - metric for metric in METRICS], grad=False),
             dtypes=("f64",), mode=mode, factor=0.4, patience=1, threshold=0.01, threshold_mode=threshold_mode, cooldown=1,
             min_lr=0.004)

for options in [dict(), dict(momentum=0.9), dict(centered=True, alpha=0.8), dict(weight_decay=0.1, eps=1e-3),
                dict(maximize=True, momentum=0.5, centered=True, weight_decay=0.2, alpha=0.7)]:
    optimizer("RMSprop", torch.optim.RMSprop, lr=0.05, **options)
