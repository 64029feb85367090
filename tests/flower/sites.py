"""A small federation for tests: Gaussian blobs, a linear network, and ClientApps as in Flower's quickstarts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from federation import MemoryGrid, Node

FEATURES, CLASSES, SITES = 4, 3, 6


def new_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def blobs(seed: int, size: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=size)
    x = rng.normal(size=(size, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[y]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def batches(context: Context) -> list[dict[str, torch.Tensor]]:
    """Batches as a DataLoader over a Flower dataset yields them. Sites with odd numbers have wrong labels."""
    site = int(context.node_config["partition-id"])
    x, y = blobs(1 + site, size=20 + 10 * site)
    y = (y + site % 2) % CLASSES
    return [{"img": x[i : i + 10], "label": y[i : i + 10]} for i in range(0, len(x), 10)]


def plain_app(make: Callable[[], nn.Module] = new_net, app: ClientApp | None = None) -> ClientApp:
    """Add the train and evaluate functions to `app`, by default to a new ClientApp without filfl."""
    app = app or ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        mu = message.content["config"].get("proximal-mu", 0.0)
        start = [p.detach().clone() for p in model.parameters()]
        total = number = 0
        for batch in batches(context):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["img"]), batch["label"])
            loss = loss + mu / 2 * sum(((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True))
            loss.backward()
            optimizer.step()
            total, number = total + loss.item(), number + len(batch["label"])
        metrics = MetricRecord({"train_loss": total, "num-examples": number})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = make()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model.eval()
        pairs = [(model(batch["img"]), batch["label"]) for batch in batches(context)]
        loss = float(np.mean([nn.functional.cross_entropy(z, y).item() for z, y in pairs]))
        metrics = MetricRecord({"eval_loss": loss, "num-examples": sum(len(y) for _, y in pairs)})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app


def federation(app: ClientApp | None = None, sites: int = SITES) -> MemoryGrid:
    app = app or plain_app()
    return MemoryGrid({1000 + 17 * i: Node(app, {"partition-id": i}, name=f"site{i}") for i in range(sites)})


def initial(make: Callable[[], nn.Module] = new_net) -> ArrayRecord:
    return ArrayRecord(make().state_dict())


def loss_on_v(arrays: ArrayRecord) -> float:
    """The server's `evaluate`, as a Flower user would write it."""
    model = new_net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = blobs(0)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x), y))


def numbers(arrays: ArrayRecord) -> np.ndarray[Any, Any]:
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])
