"""A clock that a test moves by hand."""


class ManualClock[Time]:
    """Gives the time that `now` holds, until the test sets another."""

    def __init__(self, now: Time) -> None:
        self.now = now

    def __call__(self) -> Time:
        return self.now
