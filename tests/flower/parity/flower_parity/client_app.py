"""A site: it trains on request and answers the queries of filfl."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from filfl.flower import add_queries, keep_weights
from flower_parity.task import task_of

# The mod keeps the trained weights in filter rounds with transport = "logits". Otherwise it does nothing.
app = ClientApp(mods=[keep_weights(lambda context: task_of(context.run_config).network())])


def site_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


@app.train()
def train(message: Message, context: Context) -> Message:
    state = message.content.array_records["arrays"].to_torch_state_dict()
    t = int(str(message.content.config_records["config"]["server-round"]))
    weights, num_examples, train_loss = task_of(context.run_config).train(site_of(context), state, t)
    metrics = MetricRecord({"num-examples": num_examples, "train_loss": train_loss})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)


# Power-of-choice and DivFL query the sites about their data. Random selection does not need this line.
add_queries(app, lambda context: ((task := task_of(context.run_config)).network(), *task.batches(site_of(context))))
