"""The rows and columns of the table of programs, and the cells that cannot exist, each with its reason."""

SITUATIONS = (
    # learning rates and optimizers
    "a learning-rate schedule made before the wrap",
    "a learning-rate schedule made after the wrap",
    "optimizers of many kinds",
    "two optimizers that step after one backward",
    "two models whose optimizers take turns (a GAN)",
    "two models and one optimizer",
    "hooks of an optimizer's step",
    "LBFGS, and other optimizers that call a closure",
    "ZeroRedundancyOptimizer",
    "parameters that join the optimizer later (add_param_group)",
    "a state that the optimizer loads in the middle of training",
    "copies of an optimizer (deepcopy, pickle)",
    # gradients
    "gradient accumulation",
    "gradient accumulation over numbers of batches that vary",
    "clipping of gradients, by norm and by value",
    "a GradScaler, with steps that are skipped",
    "autocast to bfloat16",
    "gradients that stay in place (zero_grad(set_to_none=False))",
    "several steps with one gradient, and steps without a backward",
    "gradients of gradients (a penalty on them)",
    "a script's own hooks on gradients",
    # parameters
    "parameters that are frozen later",
    "parameters that are unfrozen later",
    "parameters that are replaced by others",
    "parameters that some ranks do not use",
    "parameters that no rank uses in a step",
    "adapters beside frozen weights (LoRA)",
    "weights that are tied",
    "weights that are computed (weight_norm, parametrizations)",
    "an embedding whose gradients are sparse",
    "an embedding that a rank does not use at first",
    "parameters without elements or dimensions, or not contiguous",
    "convolutions in channels_last",
    "complex parameters",
    "parameters of several dtypes",
    "training in float64",
    # models
    "a recurrent net and sequences of many lengths",
    "batch normalisation",
    "synchronised batch normalisation",
    "dropout, with a seed for each rank",
    "activation checkpointing",
    "reentrant activation checkpointing",
    "a compiled model (torch.compile, XLA, hybridize)",
    "a compiled step of the optimizer (torch.compile)",
    "moving averages of the weights (AveragedModel)",
    "copies of a model (deepcopy, torch.save)",
    "a checkpoint of rank 0, from which all ranks go on",
    # data and ranks
    "a last batch that is shorter on some ranks",
    "ranks with different numbers of batches (join)",
    "a batch that fails in forward and is left out",
    "workers of a DataLoader, by fork",
    "workers of a DataLoader, by spawn",
    "evaluation on rank 0 only",
    "sums and means of metrics between steps",
    "weights that are averaged now and then (local SGD)",
    "groups of ranks, each with a model of its own",
    "the session ends and begins again",
    "an exception on one rank",
    "a rank that is killed",
)

DOORS = {
    "optimizer": "DistributedOptimizer",
    "hook": "DDP hook",
    "backend": "backend, under DDP",
    "fsdp2": "FSDP2",
    "local": "LocalSGD",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "transformers": "Transformers",
    "keras": "Keras",
    "tensorflow": "TensorFlow",
    "mxnet": "MXNet",
}

# situation -> doors -> why there is no such program
ABSENT: dict[str, dict[str, str]] = {
    "a learning-rate schedule made before the wrap": {
        "fsdp2": "`fully_shard` replaces a model's parameters, so optimizers are made after it",
    },
    "two optimizers that step after one backward": {"transformers": "the Trainer has one model and one optimizer"},
    "two models whose optimizers take turns (a GAN)": {"transformers": "the Trainer has one model and one optimizer"},
    "hooks of an optimizer's step": {"tensorflow mxnet": "the framework's optimizers have no hooks"},
    "LBFGS, and other optimizers that call a closure": {
        "transformers": "the Trainer calls the step without a closure",
        "keras tensorflow mxnet": "the framework has no such optimizer",
    },
    "ZeroRedundancyOptimizer": {
        "optimizer": "it is made for DDP, and does not step by what a wrapper of it has reduced",
        "fsdp2": "FSDP2 shards the optimizer's state by itself",
        "transformers": "the Trainer shards an optimizer's state by FSDP or DeepSpeed only",
        "keras tensorflow mxnet": "it is PyTorch's",
    },
    "parameters that join the optimizer later (add_param_group)": {
        "keras tensorflow mxnet": "the framework's optimizers have no groups of parameters",
    },
    "copies of an optimizer (deepcopy, pickle)": {
        "keras tensorflow": "Keras copies an optimizer by its state: see the line above",
        "mxnet": "gluon's optimizers keep their state in the Trainer, and copy that by a file: see the line above",
    },
    "gradient accumulation over numbers of batches that vary": {
        "keras": "Keras takes one number for all of a training"
    },
    "a GradScaler, with steps that are skipped": {
        "lightning accelerate transformers": "the library scales losses on GPUs only",
        "mxnet": "MXNet scales losses on GPUs only",
    },
    "autocast to bfloat16": {"mxnet": "MXNet computes in bfloat16 on few CPUs"},
    "gradients that stay in place (zero_grad(set_to_none=False))": {
        "transformers": "the Trainer sets gradients to zero by itself",
        "keras tensorflow": "gradients are values there, which no parameter keeps",
        "mxnet": "gradients always stay in place there",
    },
    "several steps with one gradient, and steps without a backward": {
        "transformers": "the library makes one step of each batch",
        "mxnet": "gluon's Trainer refuses a gradient that it has taken once",
    },
    "gradients of gradients (a penalty on them)": {
        "fsdp2": "FSDP2 lets go of the parameters after the first backward, which the second one wants",
        "mxnet": "few of MXNet's operators have a second derivative, and dense layers have none",
    },
    "a script's own hooks on gradients": {
        "keras tensorflow mxnet": "the framework has no hooks on gradients",
    },
    "parameters that are unfrozen later": {
        "lightning transformers": "the library wraps a model once, and DDP knows the parameters that it was made with",
    },
    "parameters that are replaced by others": {
        "lightning transformers": "the library wraps a model once, and DDP knows the parameters that it was made with",
    },
    "parameters that no rank uses in a step": {
        "keras": "the graph of `fit` has the same parameters in each step: see the line above",
    },
    "weights that are computed (weight_norm, parametrizations)": {
        "mxnet": "gluon has none",
    },
    "an embedding whose gradients are sparse": {
        "fsdp2": "PyTorch has no sparse gradients of sharded parameters",
        "transformers": "the Trainer takes the norm of all gradients, which PyTorch has not of sparse ones",
    },
    "an embedding that a rank does not use at first": {
        "hook backend lightning accelerate transformers": "DDP wants a sparse gradient from all ranks or from none",
        "fsdp2": "PyTorch has no sparse gradients of sharded parameters",
        "keras tensorflow": "a graph gives a gradient for each embedding that is in it, of no rows if need be",
        "mxnet": "MXNet's embedding has a dense gradient there, in each step",
    },
    "parameters without elements or dimensions, or not contiguous": {
        "fsdp2": "FSDP2 takes none without dimensions, and none that is not contiguous",
    },
    "convolutions in channels_last": {"fsdp2": "FSDP2 takes contiguous parameters only"},
    "complex parameters": {
        "keras": "Keras has no complex weights",
        "mxnet": "MXNet has no complex arrays",
    },
    "synchronised batch normalisation": {
        "backend fsdp2 lightning accelerate transformers": "PyTorch's SyncBatchNorm is for GPUs only",
        "mxnet": "MXNet's is for GPUs of one host only",
    },
    "activation checkpointing": {
        "mxnet": "MXNet has it as a variable of the environment, for a whole process",
        "keras": "keras.RematScope fails in plain Keras 3.15 on TensorFlow 2.21",
    },
    "reentrant activation checkpointing": {"keras tensorflow mxnet": "it is PyTorch's"},
    "a compiled step of the optimizer (torch.compile)": {
        "lightning transformers": "the library calls the optimizer's step by itself",
        "keras tensorflow mxnet": "it is PyTorch's",
    },
    "copies of a model (deepcopy, torch.save)": {
        "fsdp2": "FSDP2 refuses to copy a model",
    },
    "ranks with different numbers of batches (join)": {
        "fsdp2": "FSDP2 has no join()",
        "accelerate": "Accelerate joins ranks with GPUs only",
        "lightning transformers": "the library makes the ranks' data equally long",
        "keras": "`fit` asks for the same number of batches on all ranks",
    },
    "a batch that fails in forward and is left out": {
        "transformers keras": "the library ends training with the error",
        "lightning": "Lightning refuses a training_step that returns None where there are several ranks",
    },
    "workers of a DataLoader, by fork": {"tensorflow": "tf.data makes them by threads"},
    "workers of a DataLoader, by spawn": {
        "transformers": "TrainingArguments have no start method for workers",
        "keras": "a PyDataset's workers are forked",
        "tensorflow": "tf.data makes data by threads",
        "mxnet": "gluon's workers are forked",
    },
    "evaluation on rank 0 only": {"fsdp2": "in a forward of FSDP2 all ranks take part"},
    "weights that are averaged now and then (local SGD)": {
        "hook lightning transformers": "PyTorch's way is a hook of DDP that takes the place of this one",
        "fsdp2": "no rank has a model of its own",
    },
    "groups of ranks, each with a model of its own": {
        "lightning accelerate transformers": "the library makes DDP over all ranks",
    },
}
