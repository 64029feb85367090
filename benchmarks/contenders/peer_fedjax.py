"""FedJAX: federated averaging with `for_each_client`, which compiles the step of a client once (jit)."""

from collections.abc import Iterator
from typing import Any

from protocol import Turns, arguments
from workloads import WORKLOADS


def main() -> None:
    workload = WORKLOADS[arguments().parse_args().workload]
    turns = Turns()

    import jax

    jax.tree_map = jax.tree_util.tree_map  # FedJAX 0.0.17 uses this name

    import fedjax
    import jax.numpy as jnp
    import numpy as np
    from fedjax.algorithms.fed_avg import create_train_for_each_client
    from jax import lax

    from workloads import cohort, initial, probe, samples

    def dense(weight: Any, bias: Any) -> Any:
        return jnp.asarray(weight.T), jnp.asarray(bias)

    def mlp_weights() -> list[Any]:
        w1, b1, w2, b2 = initial(workload)
        return [dense(w1, b1), dense(w2, b2)]

    def mlp(params: Any, x: Any) -> Any:
        (w1, b1), (w2, b2) = params
        return jax.nn.relu(x @ w1 + b1) @ w2 + b2

    def cnn_weights() -> list[Any]:
        """In the layout for which XLA's CPU convolution is fast: images [n, height, width, channels]."""
        c1, b1, c2, b2, w3, b3, w4, b4 = initial(workload)
        w3 = w3.reshape(2048, 64, 7, 7).transpose(0, 2, 3, 1).reshape(2048, 3136)
        kernels = [(jnp.asarray(c.transpose(2, 3, 1, 0)), jnp.asarray(b)) for c, b in ((c1, b1), (c2, b2))]
        return [*kernels, dense(w3, b3), dense(w4, b4)]

    def cnn(params: Any, x: Any) -> Any:
        *kernels, (w3, b3), (w4, b4) = params
        x = x.transpose(0, 2, 3, 1)
        for kernel, bias in kernels:
            x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = lax.reduce_window(jax.nn.relu(x + bias), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(len(x), -1)
        return jax.nn.relu(x @ w3 + b3) @ w4 + b4

    params, model = (mlp_weights(), mlp) if workload.model == "mlp" else (cnn_weights(), cnn)

    def loss(params: Any, batch: Any, rng: Any = None) -> Any:
        likelihood = jax.nn.log_softmax(model(params, batch["x"]))
        return -jnp.take_along_axis(likelihood, batch["y"][:, None], axis=1).mean()

    datasets = []
    for k in range(workload.N):
        x, y = samples(workload, k)
        datasets.append(fedjax.ClientDataset({"x": x, "y": y}))
    order = np.random.default_rng(0)
    steps = seen = 0

    def batches(dataset: Any) -> Iterator[Any]:
        """As in the other contenders, each epoch has a new order and its last batch may be smaller (not in FedJAX)."""
        nonlocal steps, seen
        for _ in range(workload.epochs):
            index = order.permutation(len(dataset))
            shuffled = fedjax.ClientDataset({key: value[index] for key, value in dataset.raw_examples.items()})
            for batch in shuffled.batch(batch_size=workload.batch):
                steps += 1
                seen += len(batch["y"])
                yield batch

    train = create_train_for_each_client(jax.grad(loss), fedjax.optimizers.sgd(learning_rate=workload.lr))
    rng = jax.random.PRNGKey(0)
    turns.ready()
    t = 0
    while turns.wait():
        clients = [(k, batches(datasets[k]), rng) for k in cohort(workload, t)]
        total = fedjax.tree_util.tree_zeros_like(params)
        for _, delta in train(params, clients):
            total = fedjax.tree_util.tree_add(total, delta)
        mean = fedjax.tree_util.tree_inverse_weight(total, float(workload.K))
        params = jax.block_until_ready(jax.tree_util.tree_map(lambda w, d: w - d, params, mean))
        t += 1
        turns.done()
    x, y = probe(workload)
    turns.stop(steps=steps, seen=seen, loss=float(loss(params, {"x": x, "y": y})))


if __name__ == "__main__":
    main()
