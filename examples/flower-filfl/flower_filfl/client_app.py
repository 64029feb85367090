"""flower-filfl: a site. Nothing here knows about filtering."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_filfl.task import Batches, Net, load_data, load_local_data
from flower_filfl.task import test as test_fn
from flower_filfl.task import train as train_fn

app = ClientApp()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def load(context: Context) -> tuple[Batches, Batches]:
    """In simulation, Flower gives every node a partition id; in deployment, `--node-config` gives it a path."""
    node, batch_size = context.node_config, int(context.run_config["batch-size"])
    if "partition-id" in node:
        return load_data(int(node["partition-id"]), int(node["num-partitions"]), batch_size)
    return load_local_data(str(node["data-path"]), batch_size)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the data of this site."""
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    trainloader, _ = load(context)
    lr = float(str(msg.content.config_records["config"]["lr"]))
    train_loss = train_fn(model, trainloader, int(context.run_config["local-epochs"]), lr, device)
    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})  # type: ignore[arg-type]
    content = RecordDict({"arrays": ArrayRecord(model.cpu().state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the validation data of this site."""
    model = Net()
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    _, valloader = load(context)
    loss, accuracy = test_fn(model, valloader, device)
    number = len(valloader.dataset)  # type: ignore[arg-type]
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": number})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
