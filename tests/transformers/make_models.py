"""Models of transformers and torchvision with random weights that make their logits tell mistakes: at their usual first
weights biases, norms and positions hardly count. Imported by scripts/make_golden_models and compare_transformers."""
import numpy
import torch
import torchvision
import transformers

CONFIGS = {"gpt2": transformers.GPT2Config, "llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
           "mistral": transformers.MistralConfig}


def language_model(kind, config, seed):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[kind](**config), dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 2:
                fan_in = parameter.shape[0 if kind == "gpt2" and ".h." in name else 1]
                parameter.normal_(0, 1.5 / fan_in**0.5)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3)
            else:
                parameter.normal_(1, 0.3)
    return model


def save(model, folder, dtype, shard_size=None):
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))


def logits(folder, ids, dtype):
    """Of what was saved, computed in `dtype`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(ids).logits.float().contiguous()


def numbers(name, shape):
    """In [-0.5, 0.5), a function of the name and the place alone: tests/models/vision makes the same."""
    seed = numpy.uint32(2166136261)
    with numpy.errstate(over="ignore"):
        for byte in name.encode():
            seed = numpy.uint32((seed ^ numpy.uint32(byte)) * numpy.uint32(16777619))
        x = numpy.arange(int(numpy.prod(shape)), dtype=numpy.uint32) * numpy.uint32(2654435761) + seed
        x ^= x >> numpy.uint32(15)
        x *= numpy.uint32(2246822519)
        x ^= x >> numpy.uint32(13)
    return torch.from_numpy(((x >> numpy.uint32(8)).astype(numpy.float32) / numpy.float32(2**24)
                             - numpy.float32(0.5)).reshape(shape))


def resnet(name, classes):
    model = getattr(torchvision.models, name)(num_classes=classes).eval()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if key.endswith("num_batches_tracked"):
                continue
            drawn = numbers(key, value.shape)
            if value.ndim > 1:
                value.copy_(drawn * (4 / value[0].numel()**0.5))
            elif key.endswith(("running_var", "weight")):
                value.copy_(drawn + 1)
            else:
                value.copy_(drawn)
    return model
