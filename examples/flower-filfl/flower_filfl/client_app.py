"""A site: it trains when it is asked to, and answers filfl's questions."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from filfl.flower import add_queries, keep_weights
from flower_filfl.task import site_of

# The mod keeps what was trained where filter rounds move logits (transport = "logits"); otherwise it does nothing.
app = ClientApp(mods=[keep_weights(lambda context: site_of(context.run_config).new_module())])


@app.train()
def train(message: Message, context: Context) -> Message:
    state = message.content["arrays"].to_torch_state_dict()
    t = int(message.content["config"]["server-round"])
    site = int(context.node_config["partition-id"])
    weights, num_examples, train_loss = site_of(context.run_config).train(site, state, t)
    metrics = MetricRecord({"num-examples": num_examples, "train_loss": train_loss})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)


# Power-of-choice and DivFL ask sites about their data; random selection works without this line.
add_queries(app, lambda context: site_of(context.run_config).load(int(context.node_config["partition-id"])))
