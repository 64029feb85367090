"""MLflow: a run with parameters and metrics, in a local database unless a tracking server was named."""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import filelock

from filfl.runs.follow import Beginning
from filfl.trackers.base import Session, Tracker, parameters, run_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "filfl"
"""Where MLFLOW_EXPERIMENT_NAME is not set."""
IN_EVERY_ROUND = "clients/selected"


class MLflow(Tracker):
    """A run in `mlflow.db`, to be seen with `mlflow ui`, or wherever MLFLOW_TRACKING_URI points to."""

    name = "mlflow"
    needs = ("mlflow", "sqlalchemy", "alembic")
    holds_many = True

    def __post_init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # it tells of every table that it makes
        super().__post_init__()

    def open(self, run: Beginning, known_as: str | None) -> Session:
        import mlflow
        from mlflow.entities import Param

        if mlflow.is_tracking_uri_set():
            client = mlflow.MlflowClient()
            experiment = _experiment(client)
        else:
            place = self.place(run)
            place.mkdir(parents=True, exist_ok=True)
            # The runs of a comparison begin at the same time, and only one of them can make the tables.
            with filelock.FileLock(place / ".mlflow.lock"):
                client = mlflow.MlflowClient(f"sqlite:///{(place / 'mlflow.db').as_posix()}")
                experiment = _experiment(client, (place / "mlflow-artifacts").as_uri())
        if known_as is None:
            known_as = client.create_run(experiment, run_name=run_name(run.config)).info.run_id
            client.log_batch(known_as, params=[Param(k, str(v)) for k, v in parameters(run.config).items()])
        else:
            client.update_run(known_as, "RUNNING")
        return _Run(client, known_as)


class _Run:
    def __init__(self, client: "MlflowClient", id: str) -> None:
        self._client, self.id = client, id
        self._there = {metric.step for metric in client.get_metric_history(id, IN_EVERY_ROUND)}

    def write(self, t: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if t not in self._there:
            now = int(time.time() * 1000)
            self._client.log_batch(self.id, [Metric(name, value, now, t) for name, value in metrics.items()])

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def _experiment(client: "MlflowClient", artifacts: str | None = None) -> str:
    from mlflow.exceptions import MlflowException

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifacts))
        except MlflowException:  # on a server, another run may have made it in this moment
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)
