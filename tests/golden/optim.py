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
