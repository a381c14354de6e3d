"""Why a figure cannot be drawn."""


class NoDataError(ValueError):
    """The runs lack what a figure shows."""
