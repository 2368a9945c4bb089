"""The rows and columns of the table of programs, and the cells that cannot exist, each with its reason."""

SITUATIONS = (
    "a learning-rate schedule made before the wrap",
    "a learning-rate schedule made after the wrap",
    "two optimizers that step after one backward",
    "two models whose optimizers take turns (a GAN)",
    "two models and one optimizer",
    "optimizers of many kinds",
    "gradient accumulation",
    "gradient accumulation over numbers of batches that vary",
    "clipping of gradients, by norm and by value",
    "a GradScaler, with steps that are skipped",
    "autocast to bfloat16",
    "hooks of an optimizer's step",
    "LBFGS, and other optimizers that call a closure",
    "gradients that stay in place (zero_grad(set_to_none=False))",
    "several steps with one gradient, and steps without a backward",
    "parameters that are frozen later",
    "parameters that are unfrozen later",
    "parameters that are replaced by others",
    "parameters that join the optimizer later (add_param_group)",
    "parameters that some ranks do not use",
    "parameters that no rank uses in a step",
    "weights that are tied",
    "an embedding whose gradients are sparse",
    "an embedding that a rank does not use at first",
    "parameters without elements or dimensions, or not contiguous",
    "convolutions in channels_last",
    "complex parameters",
    "parameters of several dtypes",
    "training in float64",
    "adapters beside frozen weights (LoRA)",
    "weights that are computed (weight_norm, parametrizations)",
    "a recurrent net and sequences of many lengths",
)

DOORS = {
    "optimizer": "DistributedOptimizer",
    "hook": "DDP hook",
    "backend": "backend, under DDP",
    "fsdp2": "FSDP2",
}

# situation -> doors -> why there is no such program
ABSENT: dict[str, dict[str, str]] = {}
