"""The shape of the images that a network needs."""

from filfl.errors import ConfigError


def image_shape(sample_shape: tuple[int, ...], at_least: int) -> tuple[int, int, int]:
    """Channels, height and width of a sample. Refuses samples that are not images or smaller than `at_least` pixels."""
    if len(sample_shape) != 3:
        raise ConfigError(
            f"model.name: this network needs images of shape channels x height x width, but the samples have the shape "
            f"{list(sample_shape)}; use mlp or logistic"
        )
    channels, height, width = sample_shape
    if min(height, width) < at_least:
        raise ConfigError(
            f"model.name: this network needs images of at least {at_least} x {at_least} pixels, but those of the data "
            f"have {height} x {width}; use a smaller network"
        )
    return channels, height, width
