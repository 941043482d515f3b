"""What the optimizers and schedules should give, in double precision and independent of the library: PyTorch's
documented updates element by element, and its schedulers in the recursive form in which it steps them.

usage: optim_golden.py > optim_golden.h
"""
import itertools
import math

START = [1.0, -2.0, 0.5, 0.0]
STEPS = 6


def gradient(i, t):
    return ((7 * i + 5 * t + 3) % 11 - 5) / 4


def adam(lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, decoupled):
    result = []
    for i, p in enumerate(START):
        m = v = v_max = 0.0
        for t in range(1, STEPS + 1):
            g = -gradient(i, t) if maximize else gradient(i, t)
            if decoupled:
                p *= 1 - lr * weight_decay
            else:
                g += weight_decay * p
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            v_max = max(v_max, v)
            m_hat = m / (1 - beta1**t)
            v_hat = (v_max if amsgrad else v) / (1 - beta2**t)
            p -= lr * m_hat / (math.sqrt(v_hat) + eps)
        result.append(p)
    return result


def sgd(lr, momentum, dampening, weight_decay, nesterov, maximize):
    result = []
    for i, p in enumerate(START):
        buffer = None
        for t in range(1, STEPS + 1):
            g = -gradient(i, t) if maximize else gradient(i, t)
            g += weight_decay * p
            if momentum:
                buffer = g if buffer is None else momentum * buffer + (1 - dampening) * g
                g = g + momentum * buffer if nesterov else buffer
            p -= lr * g
        result.append(p)
    return result


def numbers(values):
    texts = [repr(float(v)) for v in values]
    rows = [", ".join(texts[i:i + 4]) for i in range(0, len(texts), 4)]
    return "{" + ",\n     ".join(rows) + "}"


def flag(value):
    return "true" if value else "false"


def print_adam():
    print("struct AdamCase {\n  AdamOptions options;\n  bool decoupled;\n  std::vector<double> result;\n};")
    print("inline const AdamCase kAdamCases[] = {")
    kinds = [(0.1, 0.9, 0.999, 1e-8), (0.02, 0.5, 0.9, 0.01), (0.1, 0.0, 0.99, 1e-8), (0.1, 0.2, 0.0, 1e-3)]
    for (lr, beta1, beta2, eps), decay, amsgrad, maximize, decoupled in itertools.product(
            kinds, [0, 0.3], [False, True], [False, True], [False, True]):
        if decoupled and not decay:
            continue
        options = (f"{{.lr = {lr}, .betas = {{{beta1}, {beta2}}}, .eps = {eps}, .weight_decay = {decay}, "
                   f".amsgrad = {flag(amsgrad)}, .maximize = {flag(maximize)}}}")
        result = adam(lr, beta1, beta2, eps, decay, amsgrad, maximize, decoupled)
        print(f"    {{{options}, {flag(decoupled)},\n     {numbers(result)}}},")
    print("};\n")


def print_sgd():
    print("struct SgdCase {\n  SgdOptions options;\n  std::vector<double> result;\n};")
    print("inline const SgdCase kSgdCases[] = {")
    for momentum, dampening, decay, nesterov, maximize in itertools.product(
            [0, 0.9], [0, 0.4], [0, 0.3], [False, True], [False, True]):
        if (nesterov and (dampening or not momentum)) or (dampening and not momentum):
            continue
        options = (f"{{.lr = 0.1, .momentum = {momentum}, .dampening = {dampening}, .weight_decay = {decay}, "
                   f".nesterov = {flag(nesterov)}, .maximize = {flag(maximize)}}}")
        print(f"    {{{options},\n     {numbers(sgd(0.1, momentum, dampening, decay, nesterov, maximize))}}},")
    print("};\n")


# ---- schedules: the rate of the next epoch from that of the last one, as PyTorch's get_lr does

EPOCHS = 12
BASE = 0.5


def recursive(first, following):
    rates = [first]
    for epoch in range(1, EPOCHS):
        rates.append(following(rates[-1], epoch))
    return rates


def step_lr(lr, e):
    return lr * 0.5 if e % 3 == 0 else lr


def multi_step_lr(lr, e):
    return lr * 0.1 ** [2, 5, 5, 9].count(e)


def exponential_lr(lr, e):
    return lr * 0.9


def cosine_lr(lr, e, t_max=5, eta_min=0.05):
    if (e - 1 - t_max) % (2 * t_max) == 0:
        return lr + (BASE - eta_min) * (1 - math.cos(math.pi / t_max)) / 2
    return (1 + math.cos(math.pi * e / t_max)) / (1 + math.cos(math.pi * (e - 1) / t_max)) * (lr - eta_min) + eta_min


def linear_lr(lr, e, start=0.25, end=0.75, total=4):
    if e > total:
        return lr
    return lr * (1 + (end - start) / (total * start + (e - 1) * (end - start)))


def chained(lr, e):
    return exponential_lr(step_lr(lr, e), e)


def warm_up_then_cosine(lr, e):
    # At its milestone the next schedule is stepped to epoch 0, which gives it the base rate.
    return linear_lr(lr, e, 0.1, 1.0, 4) if e < 4 else BASE if e == 4 else cosine_lr(lr, e - 4, 6, 0.0)


def print_schedules():
    print(f"inline constexpr double kBaseLr = {BASE};")
    for name, first, following in [
            ("kStepLR", BASE, step_lr), ("kMultiStepLR", BASE, multi_step_lr), ("kExponentialLR", BASE, exponential_lr),
            ("kCosineAnnealingLR", BASE, cosine_lr), ("kLinearLR", BASE * 0.25, linear_lr),
            ("kChained", BASE, chained), ("kWarmUpThenCosine", BASE * 0.1, warm_up_then_cosine)]:
        print(f"inline const std::vector<double> {name} =\n    {numbers(recursive(first, following))};")


print("// Written by optim_golden.py.\n#pragma once\n\n#include <cstdint>\n#include <vector>\n")
print('#include "lockstep/tensor/optim/adam.h"\n#include "lockstep/tensor/optim/sgd.h"\n')
print("namespace lockstep::test {\n// clang-format off\n")
print(f"inline const std::vector<double> kStart = {numbers(START)};")
print(f"inline constexpr int kSteps = {STEPS};")
print("// Of element i in step t, counted from 1.")
print("inline double golden_gradient(std::int64_t i, int t) {")
print("  return static_cast<double>((7 * i + 5 * t + 3) % 11 - 5) / 4;\n}\n")
print_adam()
print_sgd()
print_schedules()
print("\n// clang-format on\n}  // namespace lockstep::test")
