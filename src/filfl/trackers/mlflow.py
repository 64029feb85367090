"""MLflow: parameters and metrics, in a local database unless MLFLOW_TRACKING_URI is set."""

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import filelock

from filfl.runs.callbacks import RunStart
from filfl.trackers.base import Session, Tracker, parameters, run_name

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "filfl"
"""The MLflow experiment, unless MLFLOW_EXPERIMENT_NAME is set."""
IN_EVERY_ROUND = "clients/selected"


class MLflow(Tracker):
    """Logs to `mlflow.db`, which `mlflow ui` shows, or to the server in MLFLOW_TRACKING_URI."""

    name = "mlflow"
    needs = ("mlflow", "sqlalchemy", "alembic")
    holds_many = True

    def __post_init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # otherwise it logs every table that it creates
        super().__post_init__()

    def open(self, run: RunStart, id: str | None) -> Session:
        import mlflow
        from mlflow.entities import Param

        if mlflow.is_tracking_uri_set():
            client = mlflow.MlflowClient()
            experiment = _experiment(client)
        else:
            directory = self.directory_of(run)
            directory.mkdir(parents=True, exist_ok=True)
            # The runs of a comparison start at the same time, but only one of them may create the tables.
            with filelock.FileLock(directory / ".mlflow.lock"):
                client = mlflow.MlflowClient(f"sqlite:///{(directory / 'mlflow.db').as_posix()}")
                experiment = _experiment(client, (directory / "mlflow-artifacts").as_uri())
        if id is None:
            id = client.create_run(experiment, run_name=run_name(run.config)).info.run_id
            client.log_batch(id, params=[Param(k, str(v)) for k, v in parameters(run.config).items()])
        else:
            client.update_run(id, "RUNNING")
        return _Run(client, id)


class _Run:
    def __init__(self, client: "MlflowClient", id: str) -> None:
        self._client, self.id = client, id
        self._logged_steps = {metric.step for metric in client.get_metric_history(id, IN_EVERY_ROUND)}

    def write(self, t: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        if t not in self._logged_steps:
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
        except MlflowException:  # on a server, another run may have created it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)
