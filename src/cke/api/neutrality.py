"""The study of neutrality for a model: its packages built with every capture and without."""

from pathlib import Path

from cke.api.model import Model, load
from cke.runtime.drivers import Driver, make_driver
from cke.runtime.neutrality import study_neutrality
from cke.schemas.capture_neutrality import Study

DRIVERS = ("per_layer", "whole_step")


def neutrality_of(path: str | Path, dtype: str = "float32", inputs: int = 20) -> Study:
    """Return whether capturing every edge of the model changes a bit, over random inputs."""
    model: Model = load(path, dtype=dtype)
    capturing = model.capturing(("*",))
    production: dict[str, Driver] = {name: model.driver(name) for name in DRIVERS}
    evidence = {name: make_driver(name, capturing, model.weights) for name in DRIVERS}
    return study_neutrality(production, evidence, inputs)
