"""What a server is told when it starts, and what one request may ask for at most."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.checks import is_int, require

MAX_CHOICES = 32  # answers to one request
MAX_STOPS = 16
MAX_STOP = 256  # characters
MAX_BAD_WORDS = 32
MAX_BAD_WORD = 64  # characters
MAX_IDS = 1024  # of a logit bias, of stop tokens
MAX_LOGPROBS = 20
MAX_DRAFT = 64  # tokens
MAX_MESSAGES = 1024
MAX_PARTS = 256  # of a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A server's settings.

    Attributes:
        name: the model's id.
        aliases: other names requests may use for it.
        draft: the drafter's spec, one of the names by which requests may ask for it.
        api_keys: keys of which requests need one; none are needed where there are none.
        max_waiting: answers that may wait for a place; more are refused.
        max_body: bytes of a request at most.
        write_timeout: seconds after which a client that reads nothing is given up.
        log_interval: seconds between two lines of counts in the log.
    """

    name: str
    aliases: tuple[str, ...] = ()
    draft: str = "none"
    api_keys: tuple[str, ...] = ()
    max_waiting: int = 256
    max_body: int = 2**21
    write_timeout: float = 60.0
    log_interval: float = 10.0

    def __post_init__(self) -> None:
        require(all((self.name, *self.aliases)), "a model's name must not be empty")
        require(all(self.api_keys), "an API key must not be empty: leave it out for none")
        for name in ("max_waiting", "max_body"):
            value = getattr(self, name)
            require(
                is_int(value) and value >= 0,
                f"{name} must be a whole number of 0 or more, not {value!r}",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the model, the main one first."""
        return (self.name, *self.aliases)
