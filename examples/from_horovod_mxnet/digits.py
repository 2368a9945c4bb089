"""Handwritten digits with gluon: the usual script for Horovod and MXNet, with one line changed, and a codec.

    casyncrun -np 4 examples/from_horovod_mxnet/digits.py

Run it with a Python that has MXNet 1.9.1, NumPy 1 and scikit-learn. Each rank trains on its share of the data.
"""

import argparse

import casync.mxnet as hvd  # before: import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32, help="images per rank in a step")
parser.add_argument("--lr", type=float, default=0.02, help="is multiplied by the number of ranks")
parser.add_argument("--compression", default="onebit")
arguments = parser.parse_args()

hvd.init()
mx.random.seed(42)

# 1797 images of 8 x 8 pixels; every fifth is for the test. Each rank takes every hvd.size()-th of the others.
images, labels = load_digits(return_X_y=True)
images, labels = images.reshape(-1, 1, 8, 8).astype(np.float32) / 16, labels.astype(np.float32)
for_test = np.arange(len(labels)) % 5 == 0
count = (~for_test).sum() // hvd.size()  # alike on all ranks, or one would have a step more
mine = slice(hvd.rank(), hvd.size() * count, hvd.size())
training = gluon.data.ArrayDataset(images[~for_test][mine], labels[~for_test][mine])
loader = gluon.data.DataLoader(training, arguments.batch_size, shuffle=True)

net = gluon.nn.HybridSequential()
with net.name_scope():
    net.add(gluon.nn.Conv2D(32, kernel_size=3, padding=1, activation="relu"), gluon.nn.MaxPool2D())
    net.add(gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(10))
net.initialize(mx.init.Xavier())
net.hybridize()

# Shapes are not known before the first forward pass, so rank 0's values are given to all in it.
hvd.broadcast_parameters(net.collect_params(), root_rank=0)
trainer = hvd.DistributedTrainer(
    net.collect_params(),
    "sgd",
    {"learning_rate": arguments.lr * hvd.size(), "momentum": 0.9},
    compression=arguments.compression,
)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

for epoch in range(arguments.epochs):
    for data, label in loader:
        with autograd.record():
            loss = loss_of(net(data), label)
        loss.backward()
        trainer.step(len(data))
    right = (net(mx.nd.array(images[for_test])).argmax(axis=1).asnumpy() == labels[for_test]).mean()
    accuracy = hvd.allreduce(mx.nd.array([right]), name="accuracy").asscalar()
    if hvd.rank() == 0:
        sent = hvd.counters()["sent_bytes"] / 1e6
        print(f"epoch {epoch + 1}: accuracy {100 * accuracy:.1f} %, rank 0 sent {sent:.1f} MB", flush=True)
