"""The ranges of options that losses, corrections and divergences share."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]
AboveOne = Annotated[float, Meta(gt=1)]

Over = Literal["sequence", "segment"]
"""What is taken together: the tokens of a member, or of one turn of it."""
