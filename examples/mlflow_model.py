"""A run of safeset as an MLflow model: saved, loaded by MLflow alone, asked for certified sets.

    pip install mlflow-skinny pandas
    python examples/mlflow_model.py

Any server of MLflow models then answers with records of certified sets; ε is a parameter of the question.
"""

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses names that its own dependencies are about to drop
    import mlflow.models
    import mlflow.pyfunc
    import mlflow.types
    from mlflow.pyfunc.model import PythonModel

import numpy as np

import safeset
from safeset.data.embedded import digits

warnings.filterwarnings("ignore", module="mlflow")  # hints about type hints and examples; after it set its own filters


class CertifiedModel(PythonModel):  # type: ignore[misc, unused-ignore]
    """Answers with certified sets: one record for each input, as ``safeset certify --json`` writes them."""

    def load_context(self, context: Any) -> None:
        """Load the run that was saved beside this model."""
        self.net = safeset.load(context.artifacts["run"])

    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def] # MLflow reads types as schemas
        """Certify a batch; ``params={"epsilon": …}`` asks for another radius than the run's own."""
        x = np.asarray(model_input, dtype=np.float64).reshape(-1, *self.net.input_shape)
        return self.net.certify(x, epsilon=(params or {}).get("epsilon")).records()


mlflow.models.set_model(CertifiedModel())  # this file is the model's code: nothing is pickled


def save(run: Path, path: Path) -> None:
    """Write the MLflow model; the run directory goes with it."""
    net = safeset.load(run)
    points = mlflow.types.TensorSpec(np.dtype(np.float64), (-1, *net.input_shape))
    signature = mlflow.models.ModelSignature(
        inputs=mlflow.types.Schema([points]),
        params=mlflow.types.ParamSchema([mlflow.types.ParamSpec("epsilon", "double", net.epsilon)]),
    )
    mlflow.pyfunc.save_model(
        path=str(path),
        python_model=__file__,
        artifacts={"run": str(run)},
        pip_requirements=["safeset"],
        signature=signature,
    )


def main() -> None:
    """Train, save, load as any user of MLflow does, ask."""
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        run, model = Path(folder) / "run", Path(folder) / "model"
        safeset.train({"guarantee": "rt3", "epsilon": 0.5, "epochs": 10}, data=digits(), out=run, progress=False)
        save(run, model)
        loaded = mlflow.pyfunc.load_model(str(model))
        for epsilon in (0.5, 0.1):
            print(f"ε = {epsilon:g}")
            for record in loaded.predict(digits().test.exact[:3].numpy(), params={"epsilon": epsilon}):
                print("  core", record["core"], "optional", record["optional"], "certified", record["certified"])


if __name__ == "__main__":
    main()
